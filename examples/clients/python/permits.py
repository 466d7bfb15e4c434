"""Runs jobs, at most two of a user at a time, and answers whose cost is known at their end: a guard takes a permit, or an estimate of
tokens, and settles it when its block ends or fails.

    python permits.py [ADDRESS [USER]]
"""

from contextlib import contextmanager

import grpc
from client import DEADLINE_SECONDS, OVER_LIMIT, connect

# What weir puts into answers of this domain, and takes back with the settle.
METADATA, RECEIPT = "weir.clients", "weir.receipt"


class Denied(Exception):
    """The user has as many jobs in flight as it may, or fewer tokens left than the estimate."""


class Work:
    """The work of a block that has taken an estimate. Set `used` to the tokens that it has used; the others go back."""

    def __init__(self, estimate):
        # What the block is charged if it fails before it knows how many it has used.
        self.used = estimate


@contextmanager
def permit(limits, what, user):
    """Holds a permit for its block. Raises Denied if none is free."""
    receipt = take(limits, what, "job", user)
    try:
        yield
    finally:
        # Also when the block fails. A second settle would take out the permit of another job.
        settle(limits, what, "job", user, receipt)


@contextmanager
def budget(limits, what, user, estimate):
    """Holds an estimate of tokens for its block. Raises Denied if not so many are left."""
    receipt = take(limits, what, "budget", user, estimate)
    work = Work(estimate)
    try:
        yield work
    finally:
        # Also when the block fails.
        settle(limits, what, "budget", user, receipt, work.used)


def take(limits, what, key, user, estimate=None):
    """Returns a receipt; None if weir does not answer, since this program goes on without a limit then, or if it holds nothing."""
    request = limits.request_class(domain="clients")
    descriptor = request.descriptors.add()
    descriptor.entries.add(key=key, value=user)
    if estimate is not None:
        descriptor.hits_addend.value = estimate
    try:
        answer = limits.call(request, timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        print(f"{what}: no answer ({error.code().name}), started by the fallback")
        return None
    if answer.overall_code == OVER_LIMIT:
        raise Denied(what)
    left = answer.statuses[0].limit_remaining
    print(f"{what}: started, {left} free" if estimate is None else f"{what}: holds {estimate}, {left} left")
    return answer.dynamic_metadata.fields[METADATA].struct_value.fields["receipt"].string_value or None


def settle(limits, what, key, user, receipt, used=None):
    """Settles a receipt, once. If this fails the permit or the estimate ends by itself, when its window is over."""
    if receipt is None:
        return
    request = limits.request_class(domain="clients")
    descriptor = request.descriptors.add()
    descriptor.entries.add(key=key, value=user)
    descriptor.entries.add(key=RECEIPT, value=receipt)
    if used is not None:
        descriptor.hits_addend.value = used
    try:
        left = limits.call(request, timeout=DEADLINE_SECONDS).statuses[0].limit_remaining
        print(f"{what}: ended, {left} free" if used is None else f"{what}: used {used}, {left} left")
    except grpc.RpcError as error:
        print(f"{what}: ended, but not settled ({error.code().name})")


def main():
    limits, user = connect()
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

    with budget(limits, "answer 1", user, 400) as work:
        work.used = 37
    with budget(limits, "answer 2", user, 400) as work:
        # More than the estimate is charged all the same.
        work.used = 500


if __name__ == "__main__":
    main()
