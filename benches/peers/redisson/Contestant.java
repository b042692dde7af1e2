import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Takes part in the benchmark as Redisson, told line by line what to do: the protocol is described in
 * benches/locks/peers/contestant.rs.
 */
public final class Contestant {
    private static final String NAME = "bench:redisson";

    private final RedissonClient redisson;

    private Contestant(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] args) throws IOException, InterruptedException, ExecutionException {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        Contestant contestant = new Contestant(Redisson.create(config));
        answer("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            answer(contestant.obey(order.split(" ")));
        }
        // The server may have ended already, and an orderly shutdown would wait for it.
        Runtime.getRuntime().halt(0);
    }

    private String obey(String[] words) throws InterruptedException, ExecutionException {
        switch (words[0]) {
            case "cycles":
                return numbers(cycles(Long.parseLong(words[1])));
            case "crowd":
                return crowd(Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "take":
                long asked = wallClock();
                redisson.getLock(NAME).lock();
                return asked + " " + wallClock();
            case "release":
                long released = wallClock();
                redisson.getLock(NAME).unlock();
                return Long.toString(released);
            default:
                throw new IllegalArgumentException("no order: " + words[0]);
        }
    }

    private List<Long> cycles(long span) {
        RLock lock = redisson.getLock(NAME);
        List<Long> took = new ArrayList<>();
        long start = System.nanoTime();
        while (System.nanoTime() - start < span) {
            long started = System.nanoTime();
            lock.lock();
            lock.unlock();
            took.add(System.nanoTime() - started);
        }
        return took;
    }

    /** What one thread did. */
    private record Share(int passed, List<Long> waits) {}

    private String crowd(int threads, long span) throws InterruptedException, ExecutionException {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        long start = System.nanoTime();
        List<Future<Share>> running = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            running.add(pool.submit(() -> pass(start, span)));
        }
        int sections = 0;
        int served = 0;
        List<Long> waits = new ArrayList<>();
        for (Future<Share> ended : running) {
            Share share = ended.get();
            sections += share.passed;
            served += share.passed > 0 ? 1 : 0;
            waits.addAll(share.waits);
        }
        pool.shutdown();
        return sections + " " + served + " " + numbers(waits);
    }

    private Share pass(long start, long span) {
        RLock lock = redisson.getLock(NAME);
        List<Long> waits = new ArrayList<>();
        int passed = 0;
        while (System.nanoTime() - start < span) {
            long asked = System.nanoTime();
            lock.lock();
            waits.add(System.nanoTime() - asked);
            lock.unlock();
            if (System.nanoTime() - start < span) {
                passed++;
            }
        }
        return new Share(passed, waits);
    }

    private static long wallClock() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000 + now.getNano();
    }

    private static String numbers(List<Long> numbers) {
        return numbers.stream().map(String::valueOf).collect(Collectors.joining(" "));
    }

    private static void answer(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
