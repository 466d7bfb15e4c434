// Prints the fields of the messages and the values of the enums that go-control-plane has in the packages of weir's protos, one a line:
//
//	field MESSAGE NUMBER NAME KIND
//	value ENUM NUMBER NAME
package main

import (
	"fmt"
	"strings"

	_ "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	_ "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

func main() {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if name := string(file.Package()); strings.HasPrefix(name, "envoy.") || strings.HasPrefix(name, "ratelimit.") {
			messages(file.Messages())
			enums(file.Enums())
		}
		return true
	})
}

func messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		message := all.Get(i)
		fields := message.Fields()
		for j := range fields.Len() {
			field := fields.Get(j)
			kind := field.Kind().String()
			switch {
			case field.Message() != nil:
				kind = string(field.Message().FullName())
			case field.Enum() != nil:
				kind = string(field.Enum().FullName())
			}
			if field.Cardinality() == protoreflect.Repeated {
				kind = "repeated:" + kind
			}
			fmt.Println("field", message.FullName(), field.Number(), field.Name(), kind)
		}
		messages(message.Messages())
		enums(message.Enums())
	}
}

func enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		enum := all.Get(i)
		values := enum.Values()
		for j := range values.Len() {
			fmt.Println("value", enum.FullName(), values.Get(j).Number(), values.Get(j).Name())
		}
	}
}
