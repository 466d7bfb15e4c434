// Package weir is the connection of the programs here to weir.
package weir

import (
	"context"
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

// Client asks one weir. Share one in a process: it is safe for concurrent use.
type Client struct {
	service  rlsv3.RateLimitServiceClient
	deadline time.Duration
}

// Connect returns a client of the weir of the arguments, and the user.
func Connect() (client Client, user string) {
	address, user := "localhost:8081", "ann"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if len(os.Args) > 2 {
		user = os.Args[2]
	}
	// How long a program waits for one answer. weir receives it as grpc-timeout and does not work longer.
	deadline := 100 * time.Millisecond
	if ms, err := strconv.Atoi(os.Getenv("DEADLINE_MS")); err == nil {
		deadline = time.Duration(ms) * time.Millisecond
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	return Client{rlsv3.NewRateLimitServiceClient(connection), deadline}, user
}

// Call makes one attempt to ask about one descriptor. It has no context of the caller's work: a settle has to be sent although
// the work was cancelled.
func (c Client) Call(descriptor *descriptorv3.RateLimitDescriptor) (*rlsv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.deadline)
	defer cancel()
	return c.service.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain:      "clients",
		Descriptors: []*descriptorv3.RateLimitDescriptor{descriptor},
	})
}

// Name is the name of an error as gRPC spells it.
func Name(err error) string {
	switch code := status.Code(err); code {
	case codes.Unavailable:
		return "UNAVAILABLE"
	case codes.DeadlineExceeded:
		return "DEADLINE_EXCEEDED"
	default:
		return code.String()
	}
}
