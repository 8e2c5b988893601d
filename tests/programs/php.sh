# php.sh: arrays, strings, regular expressions, serialising and sorting in php.
#
# Who may call it: run.py. Runs twice: with PHP's own allocator over mmap, and with malloc alone.
#
# program: name=zend reach=php.* rounds=2 needs=php:php-cli
# program: name=malloc reach=php.* rounds=2 env=USE_ZEND_ALLOC=0 needs=php:php-cli
# version: php --version
#
# SPDX-License-Identifier: Apache-2.0
php -n -d memory_limit=1G "$HERE/php_input.php" "$SCALE"
