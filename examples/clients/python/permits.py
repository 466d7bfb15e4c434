"""Runs jobs, at most two of a user at a time: a guard takes a permit, and gives it back when its job ends or fails.

    python permits.py [ADDRESS [USER]]
"""

import sys
from contextlib import contextmanager

import grpc
from client import DEADLINE_SECONDS, OVER_LIMIT, Limits

# What weir puts into answers of this domain, and takes back with the settle.
METADATA, RECEIPT = "weir.clients", "weir.receipt"


class Denied(Exception):
    """The user has as many jobs in flight as it may."""


@contextmanager
def permit(limits, what, user):
    """Holds a permit for its block. Raises Denied if none is free."""
    receipt = take(limits, what, user)
    try:
        yield
    finally:
        # Also when the block fails. A second settle would take out the permit of another job.
        settle(limits, what, user, receipt)


def take(limits, what, user):
    """Returns the receipt of a permit; None if weir does not answer, since this program goes on without a limit then."""
    request = limits.request_class(domain="clients")
    request.descriptors.add().entries.add(key="job", value=user)
    try:
        answer = limits.call(request, timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        print(f"{what}: no answer ({error.code().name}), started by the fallback")
        return None
    if answer.overall_code == OVER_LIMIT:
        raise Denied(what)
    print(f"{what}: started, {answer.statuses[0].limit_remaining} free")
    return answer.dynamic_metadata.fields[METADATA].struct_value.fields["receipt"].string_value


def settle(limits, what, user, receipt):
    """Gives a permit back, once. If this fails the permit ends by itself, when its window is over."""
    if receipt is None:
        return
    request = limits.request_class(domain="clients")
    descriptor = request.descriptors.add()
    descriptor.entries.add(key="job", value=user)
    descriptor.entries.add(key=RECEIPT, value=receipt)
    try:
        answer = limits.call(request, timeout=DEADLINE_SECONDS)
        print(f"{what}: ended, {answer.statuses[0].limit_remaining} free")
    except grpc.RpcError as error:
        print(f"{what}: ended, but not settled ({error.code().name})")


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8081"
    user = sys.argv[2] if len(sys.argv) > 2 else "ann"
    try:
        limits = Limits(address)
    except grpc.RpcError as error:
        # Reflection needs an answer too. Generated messages do not.
        sys.exit(f"{address} does not answer: {error.code().name}")

    with permit(limits, "job 1", user):
        try:
            with permit(limits, "job 2", user):
                with permit(limits, "job 3", user):
                    pass
        except Denied as denied:
            # The error leaves the block of job 2, whose guard gives its permit back.
            print(f"{denied}: denied, try again later")
        with permit(limits, "job 4", user):
            pass


if __name__ == "__main__":
    main()
