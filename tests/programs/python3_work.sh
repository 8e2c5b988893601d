# python3_work.sh: Python programs that keep malloc busy: JSON documents, worker processes, threads.
#
# Who may call it: run.py. The programs and their checksums are in python3_work.py.
#
# program: name=json env=WORK=json reach=python3[.].* needs=/usr/bin/python3:python3
# program: name=processes env=WORK=processes rounds=1 reach=python3[.].* needs=/usr/bin/python3:python3
# program: name=threads env=WORK=threads reach=python3[.].* needs=/usr/bin/python3:python3
# version: /usr/bin/python3 --version
#
# SPDX-License-Identifier: Apache-2.0
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
/usr/bin/python3 "$HERE/python3_work.py" "$WORK" "$SCALE"
