# tar_xz.sh: tar and xz with two threads, there and back.
#
# Who may call it: run.py.
#
# program: reach=tar,xz needs=tar:tar,xz:xz-utils input=tree
# version: xz --version
#
# SPDX-License-Identifier: Apache-2.0
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf tree.tar -C "$INPUT" tree
xz -T2 -6 --block-size=256KiB -k tree.tar
sha256sum tree.tar tree.tar.xz
mkdir back
xz -T2 -dc tree.tar.xz | tar -xf - -C back
diff -r back/tree "$INPUT/tree"
xz -T2 -3 --block-size=1MiB -c tree.tar | sha256sum
