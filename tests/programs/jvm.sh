# jvm.sh: compiles a Java program and runs it: threads, collections of garbage, direct buffers, zip, sorting.
#
# Who may call it: run.py. The Java heap is mapped by the JVM; its compilers, classes, threads, direct buffers and zip
# use malloc. The heap has a limit, so that peak memory does not depend on when garbage is collected.
#
# program: reach=java,javac rounds=2 needs=java:default-jdk-headless,javac:default-jdk-headless
# version: java --version
#
# SPDX-License-Identifier: Apache-2.0
javac -J-Xmx256m -d classes "$HERE/jvm_input.java"
java -Xms128m -Xmx128m -XX:+UseG1GC -cp classes Work "$SCALE"
