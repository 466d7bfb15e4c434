// Asks weir about requests, and about work whose cost is known only at its end.
//
//	go run . [ADDRESS [USER]]
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// deadline is how long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
var deadline = 100 * time.Millisecond

// limits asks one weir. Share one in a process: it is safe for concurrent use.
type limits struct{ service rlsv3.RateLimitServiceClient }

// call makes one attempt.
func (l limits) call(request *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return l.service.ShouldRateLimit(ctx, request)
}

// ask asks about one descriptor, prints the answer, and returns whether the work may go on. hits is what to charge: 0 is a
// peek, and negative hits are given back.
func (l limits) ask(what, key, value string, hits int64) bool {
	descriptor := &descriptorv3.RateLimitDescriptor{
		Entries:        []*descriptorv3.RateLimitDescriptor_Entry{{Key: key, Value: value}},
		HitsAddend:     wrapperspb.UInt64(uint64(max(hits, -hits))),
		IsNegativeHits: hits < 0,
	}
	request := &rlsv3.RateLimitRequest{
		Domain:      "clients",
		Descriptors: []*descriptorv3.RateLimitDescriptor{descriptor},
	}

	attempts := 1
	answer, err := l.call(request)
	// weir answers UNAVAILABLE when nothing was charged. After DEADLINE_EXCEEDED a second attempt could charge twice.
	if status.Code(err) == codes.Unavailable {
		time.Sleep(time.Duration(5+rand.IntN(15)) * time.Millisecond)
		attempts++
		answer, err = l.call(request)
	}
	switch code := status.Code(err); code {
	case codes.OK:
	case codes.Unavailable, codes.DeadlineExceeded:
		// The fallback of this program: work goes on without limits while weir does not answer.
		name := map[codes.Code]string{codes.Unavailable: "UNAVAILABLE", codes.DeadlineExceeded: "DEADLINE_EXCEEDED"}[code]
		fmt.Printf("%s: no answer (%s), attempts: %d, admitted by the fallback\n", what, name, attempts)
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
	address, user := "localhost:8081", "ann"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if len(os.Args) > 2 {
		user = os.Args[2]
	}
	if ms, err := strconv.Atoi(os.Getenv("DEADLINE_MS")); err == nil {
		deadline = time.Duration(ms) * time.Millisecond
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	l := limits{rlsv3.NewRateLimitServiceClient(connection)}

	for number := 1; number <= 4; number++ {
		l.ask(fmt.Sprintf("request %d", number), "user", user, 1)
	}
	l.ask("peek", "user", user, 0)
	l.ask("refund", "user", user, -1)
	l.ask("peek", "user", user, 0)

	if l.ask("before the work", "tokens", user, 0) {
		l.ask("report of 1200 tokens", "tokens", user, 1200)
	}
	l.ask("before more work", "tokens", user, 0)
}
