/* jvm_input.java: work for a JVM whose results do not depend on time or on the order of threads.
 *
 * Who may call it: jvm.sh, as `java Work SCALE`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import java.util.zip.ZipOutputStream;

final class Work {
    private static final int TASKS = 8;

    /** Short-lived and long-lived objects: several collections of garbage in a small heap. */
    static long garbage(long seed, int scale) {
        Random random = new Random(seed);
        Map<Integer, List<String>> held = new HashMap<>();
        long sum = 0;
        for (int i = 0; i < 60_000 * scale; i++) {
            List<String> list = held.computeIfAbsent(random.nextInt(500), key -> new ArrayList<>());
            list.add("value " + random.nextInt(1_000_000));
            if (list.size() > 20) {
                sum += list.stream().mapToInt(String::hashCode).sum();
                list.clear();
            }
        }
        return sum;
    }

    /** Direct buffers: malloc in the JVM, given back when their owners are collected. */
    static long direct(long seed, int scale) {
        Random random = new Random(seed);
        ByteBuffer[] held = new ByteBuffer[64];
        long sum = 0;
        for (int i = 0; i < 500 * scale; i++) {
            ByteBuffer buffer = ByteBuffer.allocateDirect(1 + random.nextInt(100_000)).order(ByteOrder.LITTLE_ENDIAN);
            while (buffer.remaining() >= 8) {
                buffer.putLong(seed + i);
            }
            int at = random.nextInt(held.length);
            if (held[at] != null && held[at].capacity() >= 8) {
                sum += held[at].getLong(0) + held[at].capacity();
            }
            held[at] = buffer;
        }
        return sum;
    }

    static long zip(long seed, int scale) throws Exception {
        Random random = new Random(seed);
        CRC32 crc = new CRC32();
        for (int i = 0; i < 2 * scale; i++) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (ZipOutputStream out = new ZipOutputStream(bytes)) {
                out.setLevel(i % 2 == 0 ? Deflater.BEST_SPEED : Deflater.BEST_COMPRESSION);
                for (int entry = 0; entry < 20; entry++) {
                    out.putNextEntry(new ZipEntry("entry" + entry));
                    out.write(IntStream.range(0, 500).mapToObj(n -> "w" + random.nextInt(300)).collect(Collectors.joining(" ")).getBytes());
                }
            }
            try (ZipInputStream in = new ZipInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
                while (in.getNextEntry() != null) {
                    crc.update(in.readAllBytes());
                }
            }
        }
        return crc.getValue();
    }

    static long text(long seed, int scale) {
        Random random = new Random(seed);
        Pattern pattern = Pattern.compile("(\\d+)-(\\w)\\w*");
        return IntStream.range(0, 3_000 * scale)
            .mapToObj(i -> random.nextInt(1000) + "-" + Integer.toString(random.nextInt(1 << 20), 36))
            .map(line -> pattern.matcher(line).replaceAll("$2$1"))
            .sorted().distinct().mapToLong(String::hashCode).sum();
    }

    public static void main(String[] arguments) throws Exception {
        int scale = Integer.parseInt(arguments[0]);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Callable<String>> tasks = new ArrayList<>();
        for (long task = 1; task <= TASKS; task++) {
            long seed = task;
            tasks.add(() -> seed + ": " + garbage(seed, scale) + " " + direct(seed, scale) + " " + zip(seed, scale) + " " + text(seed, scale));
        }
        for (Future<String> result : pool.invokeAll(tasks)) {
            System.out.println(result.get());
        }
        pool.shutdown();
        // Threads that live shortly: each has malloc'd parts in the JVM.
        long[] sums = new long[50 * scale];
        for (int from = 0; from < sums.length; from += 10) {
            Thread[] threads = new Thread[10];
            for (int i = 0; i < 10; i++) {
                int at = from + i;
                threads[i] = new Thread(() -> sums[at] = text(at, 1) % 1000);
                threads[i].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
        }
        System.out.println(Arrays.stream(sums).sum());
    }
}
