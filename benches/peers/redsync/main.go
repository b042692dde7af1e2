// Takes part in the benchmark as redsync over go-redis, told line by line what to do: the protocol is described in
// benches/locks/peers/contestant.rs.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const name = "bench:redsync"

// newMutex has the defaults of redsync, but never runs out of tries.
func newMutex(rs *redsync.Redsync) *redsync.Mutex {
	return rs.NewMutex(name, redsync.WithTries(math.MaxInt32))
}

func main() {
	options, err := redis.ParseURL(os.Args[1])
	check(err)
	rs := redsync.New(goredis.NewPool(redis.NewClient(options)))
	held := newMutex(rs)
	answer("ready")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		words := strings.Split(orders.Text(), " ")
		switch words[0] {
		case "cycles":
			answer(numbers(cycles(rs, span(words[1]))))
		case "crowd":
			threads, err := strconv.Atoi(words[1])
			check(err)
			answer(crowd(rs, threads, span(words[2])))
		case "take":
			asked := time.Now()
			check(held.Lock())
			answer(fmt.Sprint(asked.UnixNano(), " ", time.Now().UnixNano()))
		case "release":
			released := time.Now()
			unlock(held)
			answer(fmt.Sprint(released.UnixNano()))
		default:
			panic("no order: " + orders.Text())
		}
	}
}

func cycles(rs *redsync.Redsync, span time.Duration) []time.Duration {
	mutex := newMutex(rs)
	var took []time.Duration
	for end := time.Now().Add(span); time.Now().Before(end); {
		started := time.Now()
		check(mutex.Lock())
		unlock(mutex)
		took = append(took, time.Since(started))
	}
	return took
}

func crowd(rs *redsync.Redsync, threads int, span time.Duration) string {
	var group sync.WaitGroup
	waits, passed := make([][]time.Duration, threads), make([]int, threads)
	end := time.Now().Add(span)
	for thread := range threads {
		group.Go(func() {
			mutex := newMutex(rs)
			for time.Now().Before(end) {
				asked := time.Now()
				check(mutex.Lock())
				waits[thread] = append(waits[thread], time.Since(asked))
				unlock(mutex)
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

func unlock(mutex *redsync.Mutex) {
	_, err := mutex.Unlock()
	check(err)
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
