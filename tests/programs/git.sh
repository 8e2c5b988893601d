# git.sh: a repository of generated files: add, commit, change, diff, log, gc, fsck, clone.
#
# Who may call it: run.py. Packing uses two threads; the pack's own bytes depend on them and are not compared.
#
# program: reach=git needs=git:git input=tree
# version: git --version
#
# SPDX-License-Identifier: Apache-2.0
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org
export GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@example.org GIT_PAGER=cat
export GIT_AUTHOR_DATE="2024-01-01T00:00:00Z" GIT_COMMITTER_DATE="2024-01-01T00:00:00Z"
git -c init.defaultBranch=main init -q repository
cp -r "$INPUT/tree/." repository/
cd repository
git config pack.threads 2
git config gc.auto 0
git add .
git commit -q -m "all files"
for round in 1 2 3 4 5; do
    for file in d00[0-3]/*"$round".txt; do
        sed -i "s/weir/round $round/; 3d" "$file"
    done
    git mv "d000/file0000$round.txt" "d000/moved$round.txt"
    git add -A
    git commit -q -m "round $round"
done
git log --stat -M | sha256sum
git diff HEAD~5 HEAD | sha256sum
git diff --word-diff HEAD~2 HEAD | sha256sum
git blame d001/file00055.txt | sha256sum
git grep -c sluice | sha256sum
git gc -q --aggressive
git count-objects -v | grep -E '^(count|in-pack|packs|garbage)'
git fsck --full --strict 2>/dev/null
git log --oneline
git archive HEAD | sha256sum
cd ..
git clone -q --no-local repository clone 2>/dev/null
git -C clone rev-parse HEAD
git -C clone status --short
