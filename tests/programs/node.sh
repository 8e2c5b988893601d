# node.sh: JSON, Buffers, zlib, hashes, worker threads and HTTP over loopback in node.
#
# Who may call it: run.py. V8 maps its own heap; Buffers, zlib, C++ and libuv come from malloc.
#
# program: reach=node rounds=2 needs=node:nodejs
# version: node --version
#
# SPDX-License-Identifier: Apache-2.0
exec node "$HERE/node_input.js" "$SCALE" "$PORT"
