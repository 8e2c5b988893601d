# perl.sh: hashes, regular expressions, strings and sorting in perl.
#
# Who may call it: run.py.
#
# program: reach=perl needs=perl:perl
# version: perl -e 'print "perl $^V"'
#
# SPDX-License-Identifier: Apache-2.0
export PERL_HASH_SEED=0
perl - "$SCALE" <<'PERL'
use strict;
use warnings;
my $scale = shift;
my $state = 12345;
sub number { $state = ($state * 1103515245 + 12345) % 2147483648; return $state >> 8 }

my %words;
my @lines;
for my $i (1 .. 8000 * $scale) {
    my $line = join ' ', map { 'w' . number() % 5000 } 1 .. number() % 20 + 1;
    push @lines, $line;
    $words{$_}++ for split / /, $line;
}
printf "%d words, most: %s\n", scalar keys %words, join ',', (sort { $words{$b} <=> $words{$a} || $a cmp $b } keys %words)[0 .. 9];

my $matches = 0;
for (@lines) {
    $matches++ while /\bw(\d)(\d*?)\1\b/g;
    s/w(\d+)/sprintf '%05d', $1 * 3/ge;
}
print "$matches matches\n";

my %nested;
push @{ $nested{ length($_) % 50 }{ substr $_, 0, 3 } }, $_ for @lines;
my $sum = 0;
for my $row (sort keys %nested) {
    for my $cell (sort keys %{ $nested{$row} }) {
        my $list = $nested{$row}{$cell};
        @$list = sort @$list;
        $sum += length join '|', splice @$list, 0, 5;
    }
    delete $nested{$row} if $row % 2;
}
print "$sum characters, ", scalar(keys %nested), " rows left\n";

my $long = '';
$long .= chr(97 + number() % 26) x (number() % 50) for 1 .. 5000 * $scale;
my $reversed = reverse $long;
my %pairs;
$pairs{ substr $long, $_ * 7, 3 }++ for 0 .. length($long) / 7 - 1;
printf "%d %d %s\n", length $long, scalar keys %pairs, unpack '%32C*', $reversed;
my @packed = map { pack 'NnC', number(), number() % 65536, $_ % 256 } 1 .. 10000 * $scale;
printf "%s\n", unpack '%32C*', join '', sort @packed;
PERL
