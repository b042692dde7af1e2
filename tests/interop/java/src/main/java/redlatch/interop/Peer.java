package redlatch.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;

/**
 * Clients of Redisson, each a peer, told line by line what to do.
 *
 * <p>In: {@code PEER CALL THREAD VERB KIND NAME [ARGUMENT..]}, times in milliseconds. Out, as soon as the call has
 * ended: {@code CALL ok VALUE} or {@code CALL error CLASS: MESSAGE}. Calls of one thread run in their order, those of
 * several at the same time. The verb {@code has METHOD} asks whether this Redisson knows a method, of the client or of
 * its configuration: those that older ones lack are called by their names here. The verb {@code asleep} asks how many
 * threads of the peer sleep until they are told.
 *
 * <p>A peer's first verb is {@code open SERVERS WATCHDOG [FAIR]}; its value is the id of this Redisson. SERVERS are the
 * server's URL, or those of a cluster's servers with a way to publish before; WATCHDOG is the watchdog's lease; and
 * FAIR, if it is given, the wait timeout of fair locks. The last verb is {@code close}, which is not answered.
 */
public final class Peer {
    private static final Map<String, Peer> PEERS = new HashMap<>();

    /** Null until the peer is open. */
    private volatile RedissonClient redisson;
    /** Redisson knows its owners by the thread that calls. */
    private final Map<String, ExecutorService> executors = new HashMap<>();
    private final Map<String, Thread> threads = new ConcurrentHashMap<>();

    /** Returns a thread of this peer, which is one more each time that one is made. */
    private ExecutorService executor(String name) {
        return executors.computeIfAbsent(name, unused -> Executors.newSingleThreadExecutor(task -> {
            Thread thread = new Thread(task);
            threads.put(name, thread);
            return thread;
        }));
    }

    private static Config config(String[] words) throws ReflectiveOperationException {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(words[4]));
        if (words.length > 5 && has("setFairLockWaitTimeout")) {
            Config.class.getMethod("setFairLockWaitTimeout", long.class).invoke(config, Long.parseLong(words[5]));
        }
        String[] servers = words[3].split(",");
        if (servers.length == 1) {
            config.useSingleServer().setAddress(servers[0]);
        } else {
            ClusterServersConfig cluster = config.useClusterServers();
            if (has("setShardedSubscriptionMode")) {
                Class<?> modes = Class.forName("org.redisson.config.ShardedSubscriptionMode");
                Object mode = modes.getMethod("valueOf", String.class).invoke(null, servers[0]);
                ClusterServersConfig.class.getMethod("setShardedSubscriptionMode", modes).invoke(cluster, mode);
            }
            cluster.addNodeAddress(Arrays.copyOfRange(servers, 1, servers.length));
        }
        return config;
    }

    public static void main(String[] args) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] halves = line.split(" ", 2);
            String[] words = halves[1].split(" ");
            if (words[2].equals("close")) {
                PEERS.remove(halves[0]).close();
            } else {
                Peer peer = PEERS.computeIfAbsent(halves[0], unused -> new Peer());
                peer.executor(words[1]).execute(() -> peer.obey(words));
            }
        }
        // The tests have ended. Their servers may have too, and an orderly shutdown would wait for those.
        Runtime.getRuntime().halt(0);
    }

    /** Ends without anybody waiting for it: the server may have ended too. */
    private void close() {
        executors.values().forEach(ExecutorService::shutdownNow);
        RedissonClient left = redisson;
        if (left != null) {
            Thread closing = new Thread(() -> left.shutdown(0, 0, TimeUnit.SECONDS));
            closing.setDaemon(true);
            closing.start();
        }
    }

    private void obey(String[] words) {
        try {
            answer(words[0], "ok " + call(words));
        } catch (Exception thrown) {
            Throwable error = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            answer(words[0], "error " + error.toString().lines().findFirst().orElseThrow());
        }
    }

    private static boolean has(String method) {
        return Stream.of(RedissonClient.class, Config.class, ClusterServersConfig.class)
                .flatMap(type -> Arrays.stream(type.getMethods()))
                .anyMatch(known -> known.getName().equals(method));
    }

    /** How many threads wait for a lock or a permit: Redisson has them sleep in a semaphore of the process's. */
    private long asleep() {
        return threads.values().stream()
                .map(thread -> Arrays.stream(thread.getStackTrace()))
                .map(stack -> stack.map(StackTraceElement::getClassName).toList())
                .filter(stack -> stack.contains(LockSupport.class.getName()))
                .filter(stack -> stack.contains(Semaphore.class.getName()))
                .count();
    }

    private Object call(String[] words) throws InterruptedException, ReflectiveOperationException {
        switch (words[2]) {
            case "has":
                return has(words[3]);
            case "asleep":
                return asleep();
            case "open":
                redisson = Redisson.create(config(words));
                return redisson.getId();
            default:
                break;
        }
        switch (words[3]) {
            case "latch":
                return latch(redisson.getCountDownLatch(words[4]), words);
            case "semaphore":
                return semaphore(redisson.getSemaphore(words[4]), words);
            case "expirable":
                return expirable(redisson.getPermitExpirableSemaphore(words[4]), words);
            default:
                return lock(lock(words[3], words[4]), words);
        }
    }

    private Object latch(RCountDownLatch latch, String[] words) throws InterruptedException {
        switch (words[2]) {
            case "set":
                return latch.trySetCount(Long.parseLong(words[5]));
            case "count":
                return latch.getCount();
            case "down":
                latch.countDown();
                return true;
            case "wait":
                latch.await();
                return true;
            case "delete":
                return latch.delete();
            default:
                throw new IllegalArgumentException("no verb " + words[2]);
        }
    }

    private Object semaphore(RSemaphore semaphore, String[] words) throws InterruptedException {
        switch (words[2]) {
            case "set":
                return semaphore.trySetPermits(Integer.parseInt(words[5]));
            case "acquire":
                semaphore.acquire(Integer.parseInt(words[5]));
                return true;
            case "try":
                return semaphore.tryAcquire(Integer.parseInt(words[5]));
            case "release":
                semaphore.release(Integer.parseInt(words[5]));
                return true;
            case "add":
                semaphore.addPermits(Integer.parseInt(words[5]));
                return true;
            case "drain":
                return semaphore.drainPermits();
            case "available":
                return semaphore.availablePermits();
            case "churn":
                RAtomicLong out = redisson.getAtomicLong(words[5]);
                return churn(semaphore, out, TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[6])));
            default:
                throw new IllegalArgumentException("no verb " + words[2]);
        }
    }

    /** Takes a permit again and again for so long; the most that were out, as the holders count them. */
    private static long churn(RSemaphore semaphore, RAtomicLong out, long nanos) throws InterruptedException {
        long start = System.nanoTime();
        long most = 0;
        while (System.nanoTime() - start < nanos) {
            semaphore.acquire();
            most = Math.max(most, out.incrementAndGet());
            out.decrementAndGet();
            semaphore.release();
        }
        return most;
    }

    private Object expirable(RPermitExpirableSemaphore semaphore, String[] words) throws InterruptedException {
        switch (words[2]) {
            case "set":
                return semaphore.trySetPermits(Integer.parseInt(words[5]));
            case "acquire":
                return semaphore.acquire();
            case "lease":
                return semaphore.acquire(Long.parseLong(words[5]), TimeUnit.MILLISECONDS);
            case "try":
                return semaphore.tryAcquire();
            case "release":
                return semaphore.tryRelease(words[5]);
            case "extend":
                return semaphore.updateLeaseTime(words[5], Long.parseLong(words[6]), TimeUnit.MILLISECONDS);
            case "available":
                return semaphore.availablePermits();
            default:
                throw new IllegalArgumentException("no verb " + words[2]);
        }
    }

    private Object lock(RLock lock, String[] words) throws InterruptedException, ReflectiveOperationException {
        switch (words[2]) {
            case "owner":
                return redisson.getId() + ":" + Thread.currentThread().getId();
            case "lock":
                lock.lock();
                return true;
            case "lease":
                lock.lock(Long.parseLong(words[5]), TimeUnit.MILLISECONDS);
                return true;
            case "try":
                return lock.tryLock();
            case "tryfor":
                return lock.tryLock(Long.parseLong(words[5]), TimeUnit.MILLISECONDS);
            case "unlock":
                lock.unlock();
                return true;
            case "force":
                return lock.forceUnlock();
            case "count":
                return lock.getHoldCount();
            case "held":
                return lock.isHeldByCurrentThread();
            case "locked":
                return lock.isLocked();
            case "token":
                return Class.forName("org.redisson.api.RFencedLock").getMethod("getToken").invoke(lock);
            case "churn":
                RBucket<String> counter = redisson.getBucket(words[5], StringCodec.INSTANCE);
                return churn(lock, counter, TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[6])));
            default:
                throw new IllegalArgumentException("no verb " + words[2]);
        }
    }

    /** The locks of one name; each kind is a line here. */
    private RLock lock(String kind, String name) throws ReflectiveOperationException {
        switch (kind) {
            case "reentrant":
                return redisson.getLock(name);
            case "fenced":
                return (RLock) RedissonClient.class.getMethod("getFencedLock", String.class).invoke(redisson, name);
            case "spin":
                return redisson.getSpinLock(name);
            case "fair":
                return redisson.getFairLock(name);
            case "read":
                return redisson.getReadWriteLock(name).readLock();
            case "write":
                return redisson.getReadWriteLock(name).writeLock();
            case "multi":
                return redisson.getMultiLock(
                        Arrays.stream(name.split(",")).map(redisson::getLock).toArray(RLock[]::new));
            default:
                throw new IllegalArgumentException("no kind " + kind);
        }
    }

    /** Counts up under the lock for so long; how often, and the longest wait in microseconds. */
    private static String churn(RLock lock, RBucket<String> counter, long nanos) {
        long start = System.nanoTime();
        long grants = 0;
        long longest = 0;
        for (long asked = start; asked - start < nanos; asked = System.nanoTime()) {
            lock.lock();
            longest = Math.max(longest, System.nanoTime() - asked);
            try {
                counter.set(Long.toString(Long.parseLong(counter.get()) + 1));
            } finally {
                lock.unlock();
            }
            grants++;
        }
        return grants + " " + TimeUnit.NANOSECONDS.toMicros(longest);
    }

    private static synchronized void answer(String call, String text) {
        System.out.println(call + " " + text);
        System.out.flush();
    }
}
