"""A client of weir that shares nothing with it: Python's grpcio and protobuf.

It only reports, as JSON on standard output; tests/service/grpc/python.rs says what is right.

    client.py ask ADDRESS DOMAIN KEY VALUE TIMES   asks TIMES times, messages defined here
    client.py bad ADDRESS                          sends what must be refused
    client.py health ADDRESS SERVICE...            asks grpc.health.v1 about each service
    client.py reflect ADDRESS DOMAIN KEY VALUE     learns everything from reflection, then asks
"""

import json
import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

TIMEOUT_SECONDS = 20

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = f"/{SERVICE}/ShouldRateLimit"

FIELD = descriptor_pb2.FieldDescriptorProto

# What is on the wire, by field number: message -> field -> (number, type, repeated). A type that is
# a text names a message of this table, or one of protobuf's own.
MESSAGES = {
    "Entry": {
        "key": (1, FIELD.TYPE_STRING, False),
        "value": (2, FIELD.TYPE_STRING, False),
    },
    "Descriptor": {
        "entries": (1, "Entry", True),
        "hits_addend": (3, "UInt64", False),
    },
    "UInt64": {"value": (1, FIELD.TYPE_UINT64, False)},
    "Request": {
        "domain": (1, FIELD.TYPE_STRING, False),
        "descriptors": (2, "Descriptor", True),
        "hits_addend": (3, FIELD.TYPE_UINT32, False),
    },
    "Limit": {
        "requests_per_unit": (1, FIELD.TYPE_UINT32, False),
        "unit": (2, FIELD.TYPE_INT32, False),
        "name": (3, FIELD.TYPE_STRING, False),
    },
    "Duration": {
        "seconds": (1, FIELD.TYPE_INT64, False),
        "nanos": (2, FIELD.TYPE_INT32, False),
    },
    "Status": {
        "code": (1, FIELD.TYPE_INT32, False),
        "current_limit": (2, "Limit", False),
        "limit_remaining": (3, FIELD.TYPE_UINT32, False),
        "duration_until_reset": (4, "Duration", False),
    },
    "Response": {
        "overall_code": (1, FIELD.TYPE_INT32, False),
        "statuses": (2, "Status", True),
    },
}


def message_classes():
    """Makes the classes of MESSAGES."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind, repeated) in fields.items():
            field = message.field.add(name=name, number=number)
            field.label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type = FIELD.TYPE_MESSAGE
                field.type_name = f".t.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in MESSAGES
    }


def as_json(message):
    """A message by its own field names, defaults included."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def caller(channel):
    """The request class, and the method that takes one."""
    classes = message_classes()
    method = channel.unary_unary(
        METHOD,
        request_serializer=classes["Request"].SerializeToString,
        response_deserializer=classes["Response"].FromString,
    )
    return classes["Request"], method


def ask(channel, domain, key, value, times):
    request_class, should_rate_limit = caller(channel)
    request = request_class(domain=domain)
    request.descriptors.add().entries.add(key=key, value=value)
    answers = []
    for _ in range(int(times)):
        answers.append(as_json(should_rate_limit(request, timeout=TIMEOUT_SECONDS)))
    return answers


def bad(channel):
    request_class, should_rate_limit = caller(channel)
    no_domain = request_class(domain="")
    no_domain.descriptors.add().entries.add(key="user", value="ann")
    refusals = []
    for request in (no_domain, request_class(domain="shop")):
        try:
            answer = should_rate_limit(request, timeout=TIMEOUT_SECONDS)
            refusals.append({"code": "OK", "details": str(answer)})
        except grpc.RpcError as error:
            refusals.append({"code": error.code().name, "details": error.details()})
    return refusals


def health(channel, *services):
    stub = health_pb2_grpc.HealthStub(channel)
    states = {}
    for service in services:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = stub.Check(request, timeout=TIMEOUT_SECONDS)
            states[service] = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        except grpc.RpcError as error:
            states[service] = error.code().name
    return states


def reflect(channel, domain, key, value):
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName(SERVICE)
    method = service.FindMethodByName("ShouldRateLimit")
    request = message_factory.GetMessageClass(method.input_type)()
    # The names of Envoy's own fields: whoever asks by reflection writes these.
    json_format.ParseDict(
        {
            "domain": domain,
            "descriptors": [
                {
                    "entries": [{"key": key, "value": value}],
                    "hitsAddend": "2",
                    "isNegativeHits": False,
                }
            ],
        },
        request,
    )
    call = channel.unary_unary(
        f"/{service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    return {
        "services": sorted(database.get_services()),
        "request": method.input_type.full_name,
        "response": method.output_type.full_name,
        "answer": json_format.MessageToDict(call(request, timeout=TIMEOUT_SECONDS)),
    }


def main():
    command, address, *arguments = sys.argv[1:]
    commands = {"ask": ask, "bad": bad, "health": health, "reflect": reflect}
    with grpc.insecure_channel(address) as channel:
        json.dump(commands[command](channel, *arguments), sys.stdout)


if __name__ == "__main__":
    main()
