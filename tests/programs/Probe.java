import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A JVM under a fork: threads blocked in monitors, queues and sleeps, executors, garbage collections, compiled code.
 * Protocol as in probe.h: prints "ready", waits for --go, then prints what it finds.
 */
public final class Probe {
    private static final int MAP_ENTRIES = 50_000;
    private static int failures;

    private final AtomicLong ticks = new AtomicLong();
    private final AtomicLong churned = new AtomicLong();
    private final Map<String, long[]> map = new HashMap<>();
    private final Random random = new Random(42);
    private final ScheduledExecutorService scheduler = Executors.newScheduledThreadPool(2, Probe::daemon);
    private final SynchronousQueue<String> inbox = new SynchronousQueue<>();
    private final SynchronousQueue<String> outbox = new SynchronousQueue<>();
    private final CountDownLatch latch = new CountDownLatch(1);
    private final Object monitor = new Object();
    private boolean notified;
    private final CompletableFuture<String> gate = new CompletableFuture<>();
    private final CompletableFuture<String> late = gate.thenApplyAsync(value -> "future " + value);
    private final List<Thread> waiting = new ArrayList<>();

    private static Thread daemon(Runnable body) {
        Thread thread = new Thread(body);
        thread.setDaemon(true);
        return thread;
    }

    private static void check(boolean held, String what) {
        System.out.println(what + ": " + (held ? "ok" : "FAILED"));
        failures += held ? 0 : 1;
    }

    private static int collatz(long number) {
        int steps = 0;
        for (long value = number; value != 1; steps++) {
            value = value % 2 == 0 ? value / 2 : 3 * value + 1;
        }
        return steps;
    }

    private interface Blocking {
        void run() throws InterruptedException;
    }

    private void startWaiting(Blocking body) {
        Thread thread = daemon(() -> {
            try {
                body.run();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        waiting.add(thread);
        thread.start();
    }

    private void setUp() throws InterruptedException {
        for (int i = 0; i < MAP_ENTRIES; i++) {
            map.put("key-" + i, new long[] {i, i * 3L});
        }
        random.nextLong();
        scheduler.scheduleAtFixedRate(ticks::incrementAndGet, 10, 10, TimeUnit.MILLISECONDS);
        scheduler.scheduleWithFixedDelay(this::churn, 10, 10, TimeUnit.MILLISECONDS);
        startWaiting(() -> outbox.put("took " + inbox.take()));
        startWaiting(latch::await);
        startWaiting(() -> {
            synchronized (monitor) {
                while (!notified) {
                    monitor.wait();
                }
            }
        });
        for (long i = 1; i < 30_000; i++) {
            collatz(i);
        }
        Thread.sleep(100);
    }

    /** Garbage, so that collections run before and after the fork. */
    private void churn() {
        byte[][] blocks = new byte[64][];
        for (int i = 0; i < blocks.length; i++) {
            blocks[i] = new byte[8192];
            blocks[i][i] = 1;
        }
        churned.addAndGet(blocks.length);
    }

    private void fromGoOn() throws Exception {
        long ticksBefore = ticks.get();
        long churnedBefore = churned.get();
        long nanosBefore = System.nanoTime();
        Thread.sleep(300);
        check(ticks.get() > ticksBefore, "scheduler goes on");
        check(churned.get() > churnedBefore, "allocation goes on");
        check(System.nanoTime() - nanosBefore >= 300_000_000L, "System.nanoTime");
        System.gc();
        check(map.size() == MAP_ENTRIES && map.get("key-49999")[1] == 149_997, "objects after a collection");
        System.out.println("random " + random.nextLong() + " " + random.nextInt(1000));
        System.out.println("collatz " + collatz(27) + " " + collatz(97));
        inbox.put("a message");
        System.out.println("queue: " + outbox.take());
        latch.countDown();
        synchronized (monitor) {
            notified = true;
            monitor.notifyAll();
        }
        for (Thread thread : waiting) {
            thread.join(10_000);
            check(!thread.isAlive(), "waiting thread released");
        }
        gate.complete("completed");
        System.out.println(late.get(10, TimeUnit.SECONDS));
        try {
            System.out.println(map.get("key-1")[2]);
        } catch (ArrayIndexOutOfBoundsException e) {
            System.out.println("exception: " + e.getMessage());
        }
        try {
            // A null that compiled code finds by SIGSEGV.
            System.out.println(map.get("no such key")[0]);
        } catch (NullPointerException e) {
            System.out.println("null found");
        }
        try {
            System.out.println(deep(0));
        } catch (StackOverflowError e) {
            System.out.println("stack overflow survived");
        }
    }

    private static int deep(int depth) {
        return deep(depth + 1) + 1;
    }

    private static String option(String[] arguments, String name, String otherwise) {
        for (int i = 0; i + 1 < arguments.length; i++) {
            if (arguments[i].equals(name)) {
                return arguments[i + 1];
            }
        }
        return otherwise;
    }

    public static void main(String[] arguments) throws Exception {
        Path go = Path.of(option(arguments, "--go", "/tmp/go"));
        String readyFile = option(arguments, "--ready-file", System.getenv("READY_FILE"));
        Probe probe = new Probe();
        probe.setUp();
        if (readyFile != null) {
            Files.writeString(Path.of(readyFile), "");
        }
        System.out.println("ready");
        while (!Files.exists(go)) {
            Thread.sleep(2);
        }
        probe.fromGoOn();
        System.out.println(failures == 0 ? "done" : "done with failures");
        System.exit(failures == 0 ? 0 : 1);
    }
}
