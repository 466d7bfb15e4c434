// Asks weir about requests, and about work whose cost is known only at its end.
//
//	go run . [ADDRESS [USER]]
package main

import (
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"weir.example/client/weir"
)

// ask asks about one descriptor, prints the answer, and returns whether the work may go on. hits is what to charge: 0 is a
// peek, and negative hits are given back.
func ask(client weir.Client, what, key, value string, hits int64) bool {
	descriptor := &descriptorv3.RateLimitDescriptor{
		Entries:        []*descriptorv3.RateLimitDescriptor_Entry{{Key: key, Value: value}},
		HitsAddend:     wrapperspb.UInt64(uint64(max(hits, -hits))),
		IsNegativeHits: hits < 0,
	}

	attempts := 1
	answer, err := client.Call(descriptor)
	// weir answers UNAVAILABLE when nothing was charged. After DEADLINE_EXCEEDED a second attempt could charge twice.
	if status.Code(err) == codes.Unavailable {
		time.Sleep(time.Duration(5+rand.IntN(15)) * time.Millisecond)
		attempts++
		answer, err = client.Call(descriptor)
	}
	switch status.Code(err) {
	case codes.OK:
	case codes.Unavailable, codes.DeadlineExceeded:
		// The fallback of this program: work goes on without limits while weir does not answer.
		fmt.Printf("%s: no answer (%s), attempts: %d, admitted by the fallback\n", what, weir.Name(err), attempts)
		return true
	default:
		// INVALID_ARGUMENT and the like: this program is wrong.
		log.Fatal(err)
	}

	told := answer.GetStatuses()[0]
	if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		fmt.Printf("%s: denied, try again in %d s\n", what, told.GetDurationUntilReset().GetSeconds())
		return false
	}
	fmt.Printf("%s: admitted, %d left\n", what, told.GetLimitRemaining())
	return true
}

func main() {
	client, user := weir.Connect()
	for number := 1; number <= 4; number++ {
		ask(client, fmt.Sprintf("request %d", number), "user", user, 1)
	}
	ask(client, "peek", "user", user, 0)
	ask(client, "refund", "user", user, -1)
	ask(client, "peek", "user", user, 0)

	if ask(client, "before the work", "tokens", user, 0) {
		ask(client, "report of 1200 tokens", "tokens", user, 1200)
	}
	ask(client, "before more work", "tokens", user, 0)
}
