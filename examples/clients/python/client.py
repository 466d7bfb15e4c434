"""Asks weir about requests, and about work whose cost is known only at its end.

    python client.py [ADDRESS [USER]]

It learns weir's messages by server reflection. A service with a build step generates them from proto/ with grpcio-tools.
"""

import os
import random
import sys
import time

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
OK, OVER_LIMIT = 1, 2

# How long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
DEADLINE_SECONDS = int(os.environ.get("DEADLINE_MS", "100")) / 1000


class Limits:
    """A connection to weir. Share one in a process: it is thread-safe, and many requests share it."""

    def __init__(self, address):
        channel = grpc.insecure_channel(address)
        service = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName(SERVICE)
        method = service.methods_by_name["ShouldRateLimit"]
        self.request_class = message_factory.GetMessageClass(method.input_type)
        self.call = channel.unary_unary(
            f"/{SERVICE}/{method.name}",
            request_serializer=self.request_class.SerializeToString,
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )

    def ask(self, what, key, value, hits=None, refund=False):
        """Asks about one descriptor, prints the answer, and returns whether the work may go on.

        hits is what to charge: None is 1, and 0 is a peek. With refund the hits are given back.
        """
        request = self.request_class(domain="clients")
        descriptor = request.descriptors.add(is_negative_hits=refund)
        descriptor.entries.add(key=key, value=value)
        if hits is not None:
            descriptor.hits_addend.value = hits

        for attempt in (1, 2):
            try:
                answer = self.call(request, timeout=DEADLINE_SECONDS)
                break
            except grpc.RpcError as error:
                code = error.code()
                # weir answers UNAVAILABLE when nothing was charged. After DEADLINE_EXCEEDED a second attempt could charge twice.
                if code == grpc.StatusCode.UNAVAILABLE and attempt == 1:
                    time.sleep(random.uniform(0.005, 0.02))
                    continue
                if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    # The fallback of this program: work goes on without limits while weir does not answer.
                    print(f"{what}: no answer ({code.name}), attempts: {attempt}, admitted by the fallback")
                    return True
                # INVALID_ARGUMENT and the like: this program is wrong.
                raise

        status = answer.statuses[0]
        if answer.overall_code == OVER_LIMIT:
            print(f"{what}: denied, try again in {status.duration_until_reset.seconds} s")
            return False
        print(f"{what}: admitted, {status.limit_remaining} left")
        return True


def connect():
    """Returns the weir of the arguments, and the user."""
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8081"
    user = sys.argv[2] if len(sys.argv) > 2 else "ann"
    try:
        return Limits(address), user
    except grpc.RpcError as error:
        # Reflection needs an answer too. Generated messages do not.
        sys.exit(f"{address} does not answer: {error.code().name}")


def main():
    limits, user = connect()
    for number in range(1, 5):
        limits.ask(f"request {number}", "user", user)
    limits.ask("peek", "user", user, hits=0)
    limits.ask("refund", "user", user, hits=1, refund=True)
    limits.ask("peek", "user", user, hits=0)

    if limits.ask("before the work", "tokens", user, hits=0):
        limits.ask("report of 1200 tokens", "tokens", user, hits=1200)
    limits.ask("before more work", "tokens", user, hits=0)


if __name__ == "__main__":
    main()
