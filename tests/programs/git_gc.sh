# git_gc.sh: a long history with large files by fast-import; gc, repack, fsck; every object's name and size is compared.
#
# Who may call it: run.py. Packing uses two threads; the pack's own bytes depend on them and are not compared.
#
# program: reach=git rounds=2 needs=git:git input=history
# version: git --version
#
# SPDX-License-Identifier: Apache-2.0
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git -c init.defaultBranch=main init -q repository
cd repository
git config pack.threads 2
git config gc.auto 0
git fast-import --quiet < "$INPUT/history.fi"
git count-objects -v | grep -E '^(count|in-pack|garbage)'
git gc -q --aggressive --prune=now
git fsck --full --strict 2>/dev/null
git cat-file --batch-all-objects --batch-check | sha256sum
git log --format='%H %T %s' | sha256sum
git log --stat -M -100 | sha256sum
git repack -q -a -d -f --window=20 --depth=20
git verify-pack .git/objects/pack/*.pack
git bundle create -q all.bundle --all
git clone -q --bare all.bundle clone.git
git -C clone.git rev-parse main
