// Runs jobs, at most two of a user at a time: each takes a permit, and a deferred settle gives it back when its job ends or
// fails.
//
//	go run ./permits [ADDRESS [USER]]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// deadline is how long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
var deadline = 100 * time.Millisecond

// errDenied says that the user has as many jobs in flight as it may.
var errDenied = errors.New("denied, try again later")

// permits takes permits of one user from one weir.
type permits struct {
	service rlsv3.RateLimitServiceClient
	user    string
}

func (p permits) call(entries ...*descriptorv3.RateLimitDescriptor_Entry) (*rlsv3.RateLimitResponse, error) {
	// Not the context of the job: a settle has to be sent although that was cancelled.
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return p.service.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain:      "clients",
		Descriptors: []*descriptorv3.RateLimitDescriptor{{Entries: entries}},
	})
}

// take takes a permit. The function that it returns gives the permit back: defer it, and call it once, since a second settle
// would take out the permit of another job.
func (p permits) take(what string) (settle func(), err error) {
	job := &descriptorv3.RateLimitDescriptor_Entry{Key: "job", Value: p.user}
	answer, err := p.call(job)
	if err != nil {
		// The fallback of this program: work goes on without a limit while weir does not answer.
		fmt.Printf("%s: no answer (%s), started by the fallback\n", what, name(err))
		return func() {}, nil
	}
	if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		return nil, errDenied
	}
	fmt.Printf("%s: started, %d free\n", what, answer.GetStatuses()[0].GetLimitRemaining())
	fields := answer.GetDynamicMetadata().GetFields()["weir.clients"].GetStructValue().GetFields()
	receipt := &descriptorv3.RateLimitDescriptor_Entry{Key: "weir.receipt", Value: fields["receipt"].GetStringValue()}
	return func() {
		// If this fails the permit ends by itself, when its window is over.
		answer, err := p.call(job, receipt)
		if err != nil {
			fmt.Printf("%s: ended, but not settled (%s)\n", what, name(err))
			return
		}
		fmt.Printf("%s: ended, %d free\n", what, answer.GetStatuses()[0].GetLimitRemaining())
	}, nil
}

// run runs a job while it holds a permit.
func (p permits) run(what string, job func() error) error {
	settle, err := p.take(what)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	// Also when the job fails or panics.
	defer settle()
	return job()
}

func name(err error) string {
	switch code := status.Code(err); code {
	case codes.Unavailable:
		return "UNAVAILABLE"
	case codes.DeadlineExceeded:
		return "DEADLINE_EXCEEDED"
	default:
		return code.String()
	}
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
	p := permits{rlsv3.NewRateLimitServiceClient(connection), user}
	short := func() error { return nil }

	err = p.run("job 1", func() error {
		err := p.run("job 2", func() error { return p.run("job 3", short) })
		if err != nil {
			// The error leaves job 2, whose permit is given back.
			fmt.Println(err)
		}
		return p.run("job 4", short)
	})
	if err != nil {
		log.Fatal(err)
	}
}
