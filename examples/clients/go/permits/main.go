// Runs jobs, at most two of a user at a time, and answers whose cost is known at their end: each takes a permit, or an estimate
// of tokens, and a deferred settle ends it when its work ends or fails.
//
//	go run ./permits [ADDRESS [USER]]
package main

import (
	"errors"
	"fmt"
	"log"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"weir.example/client/weir"
)

// errDenied says that the user has as many jobs in flight as it may, or fewer tokens left than the estimate.
var errDenied = errors.New("denied, try again later")

// guard takes permits and estimates of one user from one weir.
type guard struct {
	client weir.Client
	user   string
}

func entry(key, value string) *descriptorv3.RateLimitDescriptor_Entry {
	return &descriptorv3.RateLimitDescriptor_Entry{Key: key, Value: value}
}

// take takes a permit, or the hits of an estimate. It returns the receipt, which is empty if weir does not answer.
func (g guard) take(what, key, taken string, hits *wrapperspb.UInt64Value) (receipt string, err error) {
	entries := []*descriptorv3.RateLimitDescriptor_Entry{entry(key, g.user)}
	answer, err := g.client.Call(&descriptorv3.RateLimitDescriptor{Entries: entries, HitsAddend: hits})
	if err != nil {
		// The fallback of this program: work goes on without a limit while weir does not answer.
		fmt.Printf("%s: no answer (%s), started by the fallback\n", what, weir.Name(err))
		return "", nil
	}
	if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		return "", fmt.Errorf("%s: %w", what, errDenied)
	}
	fmt.Printf("%s: "+taken+"\n", what, answer.GetStatuses()[0].GetLimitRemaining())
	fields := answer.GetDynamicMetadata().GetFields()["weir.clients"].GetStructValue().GetFields()
	return fields["receipt"].GetStringValue(), nil
}

// settle settles a receipt with the hits that were used. Call it once: a second settle would give back what others hold. If it
// fails the permit or the estimate ends by itself, when its window is over.
func (g guard) settle(what, key, settled, receipt string, hits *wrapperspb.UInt64Value) {
	if receipt == "" {
		return
	}
	entries := []*descriptorv3.RateLimitDescriptor_Entry{entry(key, g.user), entry("weir.receipt", receipt)}
	answer, err := g.client.Call(&descriptorv3.RateLimitDescriptor{Entries: entries, HitsAddend: hits})
	if err != nil {
		fmt.Printf("%s: ended, but not settled (%s)\n", what, weir.Name(err))
		return
	}
	fmt.Printf("%s: "+settled+"\n", what, answer.GetStatuses()[0].GetLimitRemaining())
}

// run runs a job while it holds a permit.
func (g guard) run(what string, job func() error) error {
	receipt, err := g.take(what, "job", "started, %d free", nil)
	if err != nil {
		return err
	}
	// Also when the job fails or panics.
	defer g.settle(what, "job", "ended, %d free", receipt, nil)
	return job()
}

// answer does work that holds an estimate of tokens until it returns how many it has used.
func (g guard) answer(what string, estimate uint64, work func() uint64) error {
	receipt, err := g.take(what, "budget", fmt.Sprintf("holds %d, %%d left", estimate), wrapperspb.UInt64(estimate))
	if err != nil {
		return err
	}
	// What the work is charged if it panics before it knows how many it has used.
	used := estimate
	defer func() {
		g.settle(what, "budget", fmt.Sprintf("used %d, %%d left", used), receipt, wrapperspb.UInt64(used))
	}()
	used = work()
	return nil
}

func main() {
	client, user := weir.Connect()
	g := guard{client, user}
	short := func() error { return nil }

	err := g.run("job 1", func() error {
		err := g.run("job 2", func() error { return g.run("job 3", short) })
		if err != nil {
			// The error leaves job 2, whose permit is given back.
			fmt.Println(err)
		}
		return g.run("job 4", short)
	})
	if err == nil {
		err = g.answer("answer 1", 400, func() uint64 { return 37 })
	}
	if err == nil {
		// More than the estimate is charged all the same.
		err = g.answer("answer 2", 400, func() uint64 { return 500 })
	}
	if err != nil {
		log.Fatal(err)
	}
}
