// Serves rate limit policies by the snapshot cache and the xDS server of go-control-plane.
//
// It prints "listening ADDRESS". Then each line of standard input is a snapshot: a version, and pairs of a domain and the
// requests per hour of the key "user" in it ("-" stands for an empty domain):
//
//	v1 shop 2 forum 10
//
// A domain with a slash gets what Envoy Gateway sends for two routes of a listener, with these requests per hour: one has a limit
// for each value of a header, the other for all requests and for each client address.
//
// It prints "accepted VERSION" or "refused VERSION: REASON" for each answer of a client, and ends with its standard input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
)

// The node whose snapshots the cache holds.
const node = "weir"

func main() {
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	var sent sync.Map // The version of each nonce.
	answers := server.CallbackFuncs{
		StreamResponseFunc: func(_ context.Context, _ int64, _ *discovery.DiscoveryRequest, response *discovery.DiscoveryResponse) {
			sent.Store(response.Nonce, response.VersionInfo)
		},
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			version, _ := sent.Load(request.ResponseNonce)
			switch {
			case request.ErrorDetail != nil:
				fmt.Printf("refused %s: %s\n", version, request.ErrorDetail.Message)
			case request.ResponseNonce != "":
				fmt.Printf("accepted %s\n", version)
			}
			return nil
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	control := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(control, server.NewServer(context.Background(), snapshots, answers))
	go func() { log.Fatal(control.Serve(listener)) }()
	fmt.Printf("listening %s\n", listener.Addr())

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		snapshot, err := parse(strings.Fields(lines.Text()))
		if err == nil {
			err = snapshots.SetSnapshot(context.Background(), node, snapshot)
		}
		if err != nil {
			log.Fatalf("%q: %v", lines.Text(), err)
		}
	}
}

func parse(words []string) (*cache.Snapshot, error) {
	if len(words)%2 != 1 {
		return nil, fmt.Errorf("want a version, and pairs of a domain and a number")
	}
	var configs []types.Resource
	for rest := words[1:]; len(rest) > 0; rest = rest[2:] {
		requests, err := strconv.ParseUint(rest[1], 10, 32)
		if err != nil {
			return nil, err
		}
		domain := strings.Trim(rest[0], "-")
		limit := &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_HOUR, RequestsPerUnit: uint32(requests)}
		descriptors := []*ratelimit.RateLimitDescriptor{{Key: "user", RateLimit: limit}}
		if strings.Contains(domain, "/") {
			descriptors = ofEnvoyGateway(limit)
		}
		configs = append(configs, &ratelimit.RateLimitConfig{
			Name:        "policies of " + domain,
			Domain:      domain,
			Descriptors: descriptors,
		})
	}
	return cache.NewSnapshot(words[0], map[resource.Type][]types.Resource{resource.RateLimitConfigType: configs})
}

func ofEnvoyGateway(limit *ratelimit.RateLimitPolicy) []*ratelimit.RateLimitDescriptor {
	const users, orders = "httproute/default/users/rule/0/match/0/*", "httproute/default/orders/rule/0/match/0/*"
	header := &ratelimit.RateLimitDescriptor{Key: "rule-0-match-0", RateLimit: limit}
	all := &ratelimit.RateLimitDescriptor{Key: "rule-0-match--1", Value: "rule-0-match--1", RateLimit: limit}
	address := &ratelimit.RateLimitDescriptor{Key: "remote_address", RateLimit: limit}
	masked := &ratelimit.RateLimitDescriptor{
		Key: "masked_remote_address", Value: "0.0.0.0/0", Descriptors: []*ratelimit.RateLimitDescriptor{address},
	}
	return []*ratelimit.RateLimitDescriptor{
		{Key: users, Value: users, Descriptors: []*ratelimit.RateLimitDescriptor{header}},
		{Key: orders, Value: orders, Descriptors: []*ratelimit.RateLimitDescriptor{all, masked}},
	}
}
