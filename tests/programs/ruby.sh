# ruby.sh: strings, hashes, garbage, fibers, threads, marshalling and forks in ruby.
#
# Who may call it: run.py. Ruby's objects lie in pages from posix_memalign or mmap; all that they point to is malloc's.
#
# program: reach=ruby.* rounds=2 needs=ruby:ruby
# version: ruby --version
#
# SPDX-License-Identifier: Apache-2.0
ruby --disable-gems - "$SCALE" <<'RUBY'
scale = ARGV[0].to_i
random = Random.new(1)
checksum = ->(value) { value.to_s.unpack('C*').each_with_index.sum { |byte, at| byte * (at % 97 + 1) } }

words = Hash.new(0)
lines = Array.new(4000 * scale) { Array.new(random.rand(1..20)) { "w#{random.rand(3000)}" }.join(' ') }
lines.each { |line| line.split.each { |word| words[word] += 1 } }
puts words.size, words.sort_by { |word, count| [-count, word] }.first(5).inspect
puts checksum.(lines.map { |line| line.gsub(/w(\d)(\d*)/) { "#{$2}-#{$1}" } }.sort.uniq.join)

held = Array.new(1000)
(30_000 * scale).times do |i|
  held[random.rand(1000)] = i % 3 == 0 ? 'x' * random.rand(2000) : Array.new(random.rand(60)) { |n| n.to_s * 3 }
  GC.compact if GC.respond_to?(:compact) && i == 20_000
end
puts checksum.(held.inspect)
puts checksum.(Marshal.load(Marshal.dump(held.map { |value| { value => [value.to_s, 1.5, :name] } })).inspect)

fibers = Array.new(200) { |n| Fiber.new { 10.times { |i| Fiber.yield "#{n}:#{i}" * 5 } } }
puts checksum.(Array.new(10) { fibers.map(&:resume).join }.join)
queue = Queue.new
threads = Array.new(4) { |n| Thread.new { (300 * scale).times { |i| queue << (n * i).to_s * 20 } } }
threads.each(&:join)
puts checksum.(Array.new(queue.size) { queue.pop }.sort.join)

$stdout.flush
4.times do |n|
  reader, writer = IO.pipe
  child = fork { writer.write checksum.(held.rotate(n).map(&:to_s).join * 2); exit!(0) }
  writer.close
  puts reader.read
  Process.wait child
end
puts (2**(400 * scale)).to_s.size, checksum.((1..300 * scale).reduce(:*))
RUBY
