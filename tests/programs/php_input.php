<?php
/* php_input.php: work for php whose results are the same everywhere.
 *
 * Who may call it: php.sh, as `php php_input.php SCALE`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
$scale = (int) $argv[1];
mt_srand(1);

$words = [];
$lines = [];
for ($i = 0; $i < 20000 * $scale; $i++) {
    $line = [];
    for ($n = mt_rand(1, 20); $n > 0; $n--) {
        $line[] = 'w' . mt_rand(0, 3000);
    }
    $lines[] = implode(' ', $line);
    foreach ($line as $word) {
        $words[$word] = ($words[$word] ?? 0) + 1;
    }
}
ksort($words);
echo count($words), ' ', crc32(serialize($words)), "\n";
$changed = preg_replace_callback('/w(\d)(\d*)/', fn ($m) => "$m[2]-$m[1]", $lines);
sort($changed);
echo crc32(implode("\n", array_unique($changed))), "\n";

class Node
{
    public array $children = [];
    public ?Node $parent = null;
    public function __construct(public string $name) {}
    public function add(Node $child): Node
    {
        $child->parent = $this;
        return $this->children[] = $child;
    }
    public function size(): int
    {
        return strlen($this->name) + array_sum(array_map(fn ($child) => $child->size(), $this->children));
    }
}
$sum = 0;
for ($round = 0; $round < 40 * $scale; $round++) {
    $all = [new Node('root')];
    for ($i = 0; $i < 800; $i++) {
        $all[] = $all[mt_rand(0, count($all) - 1)]->add(new Node(str_repeat('n', mt_rand(1, 300))));
    }
    $sum += $all[0]->size();
    unset($all);
    gc_collect_cycles();
}
echo $sum, "\n";

$held = array_fill(0, 500, '');
for ($i = 0; $i < 150000 * $scale; $i++) {
    $held[mt_rand(0, 499)] = str_repeat(chr(97 + $i % 26), mt_rand(0, 5000));
}
echo crc32(implode('', $held)), ' ', crc32(serialize(unserialize(serialize($held)))), "\n";
