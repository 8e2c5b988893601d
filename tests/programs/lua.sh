# lua.sh: tables, strings, closures and coroutines in lua, whose every object is a realloc of its own.
#
# Who may call it: run.py. The seed of its string hashes is an address and a time: nothing here walks a table by `pairs`.
#
# program: reach=lua5.4 needs=lua5.4:lua5.4
# version: lua5.4 -v
#
# SPDX-License-Identifier: Apache-2.0
lua5.4 - "$SCALE" <<'LUA'
local scale = tonumber(arg[1])
local state = 1
local function random(below)
    state = (state * 1103515245 + 12345) & 0x7fffffff
    return (state >> 8) % below
end
local function checksum(text)
    local sum = 0
    for i = 1, #text do sum = (sum * 31 + text:byte(i)) & 0xffffffff end
    return sum
end

local lines, counts = {}, {}
for i = 1, 8000 * scale do
    local words = {}
    for n = 1, random(20) do
        words[n] = "w" .. random(3000)
        counts[words[n]] = (counts[words[n]] or 0) + 1
    end
    lines[i] = table.concat(words, " ")
end
local sum = 0
for i = 0, 2999 do sum = sum + i * (counts["w" .. i] or 0) end
print(#lines, sum)
for i = 1, #lines do lines[i] = lines[i]:gsub("w(%d)(%d*)", "%2-%1") end
table.sort(lines)
print(checksum(table.concat(lines, "\n")))

local function tree(depth) return depth == 0 and {} or { tree(depth - 1), tree(depth - 1) } end
local function count(node) return node[1] and 1 + count(node[1]) + count(node[2]) or 1 end
local total = 0
for _ = 1, 4 * scale do total = total + count(tree(13)) end
print(total)

local held = {}
for i = 1, 60000 * scale do held[random(2000) + 1] = string.rep(string.char(97 + i % 26), random(3000)) end
local lengths = 0
for i = 1, 2000 do lengths = lengths + #(held[i] or "") * i end
print(lengths)

local producers = {}
for n = 1, 500 do producers[n] = coroutine.wrap(function() for i = 1, 20 do coroutine.yield(("%d:%d"):format(n, i)) end end) end
local parts = {}
for _ = 1, 20 do for n = 1, 500 do parts[#parts + 1] = producers[n]() end end
print(checksum(table.concat(parts)))
LUA
