// Takes part in the benchmark as rueidislock, told line by line what to do: the protocol is described in
// benches/locks/peers/contestant.rs.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	name = "bench:rueidislock"
	// For how long a lock is valid by default.
	validity = 5 * time.Second
)

// A guard is of a held lock: its context ends if the lock is lost, and its function releases the lock.
type guard struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func main() {
	options, err := rueidis.ParseURL(os.Args[1])
	check(err)
	// All goroutines share one locker, as those of a service do. A lock is three keys, by default, of which a holder needs
	// two. Its documentation suggests KeyMajority: 1 for one server, but v1.0.79 then takes some failed tries for releases,
	// and forgets a goroutine that still waits.
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: options,
		// As in its documentation, for speed; this needs Redis 7.0.5. Without it, each renewal also causes the next one.
		NoLoopTracking: true,
		// On a busy machine, an answer may take longer than the default, 20 ms. Then a goroutine gives its keys back, and
		// with NoLoopTracking the others hear nothing of it.
		TryNextAfter: validity,
	})
	check(err)
	var held guard
	answer("ready")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		words := strings.Split(orders.Text(), " ")
		switch words[0] {
		case "cycles":
			answer(numbers(cycles(locker, span(words[1]))))
		case "crowd":
			threads, err := strconv.Atoi(words[1])
			check(err)
			answer(crowd(locker, threads, span(words[2])))
		case "take":
			asked := time.Now()
			held = lock(locker)
			answer(fmt.Sprint(asked.UnixNano(), " ", time.Now().UnixNano()))
		case "release":
			released := time.Now()
			held.unlock()
			answer(fmt.Sprint(released.UnixNano()))
		default:
			panic("no order: " + orders.Text())
		}
	}
}

func cycles(locker rueidislock.Locker, span time.Duration) []time.Duration {
	var took []time.Duration
	for end := time.Now().Add(span); time.Now().Before(end); {
		started := time.Now()
		lock(locker).unlock()
		took = append(took, time.Since(started))
	}
	return took
}

func crowd(locker rueidislock.Locker, threads int, span time.Duration) string {
	var group sync.WaitGroup
	waits, passed := make([][]time.Duration, threads), make([]int, threads)
	end := time.Now().Add(span)
	for thread := range threads {
		group.Go(func() {
			for time.Now().Before(end) {
				asked := time.Now()
				guard := lock(locker)
				waits[thread] = append(waits[thread], time.Since(asked))
				guard.unlock()
				if time.Now().Before(end) {
					passed[thread]++
				}
			}
		})
	}
	group.Wait()
	sections, served := 0, 0
	var all []time.Duration
	for thread := range threads {
		sections += passed[thread]
		if passed[thread] > 0 {
			served++
		}
		all = append(all, waits[thread]...)
	}
	return fmt.Sprint(sections, " ", served, " ", numbers(all))
}

func lock(locker rueidislock.Locker) guard {
	ctx, cancel, err := locker.WithContext(context.Background(), name)
	check(err)
	return guard{ctx, cancel}
}

// unlock returns once the server has deleted the key.
func (held guard) unlock() {
	check(held.ctx.Err())
	held.cancel()
}

func span(nanos string) time.Duration {
	span, err := strconv.ParseInt(nanos, 10, 64)
	check(err)
	return time.Duration(span)
}

func numbers(durations []time.Duration) string {
	words := make([]string, len(durations))
	for at, duration := range durations {
		words[at] = strconv.FormatInt(duration.Nanoseconds(), 10)
	}
	return strings.Join(words, " ")
}

func answer(line string) {
	fmt.Println(line)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
