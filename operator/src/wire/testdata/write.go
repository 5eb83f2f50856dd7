// Writes the files of this folder: the same objects in the API's binary form and as JSON, both by Kubernetes' own code.
// Run in a copy of e2e/kubernetes/go.mod and go.sum beside it: GOFLAGS=-mod=mod go run write.go
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func p[T any](v T) *T { return &v }
func check(err error) {
	if err != nil {
		panic(err)
	}
}

var scheme = runtime.NewScheme()

func encode(object runtime.Object) []byte {
	var out bytes.Buffer
	check(protobuf.NewSerializer(scheme, scheme).Encode(object, &out))
	return out.Bytes()
}

func write(name string, object runtime.Object) {
	check(os.WriteFile(name+".pb", encode(object), 0o644))
	text, err := json.MarshalIndent(object, "", "  ")
	check(err)
	check(os.WriteFile(name+".json", append(text, '\n'), 0o644))
}

func main() {
	check(core.AddToScheme(scheme))
	check(discovery.AddToScheme(scheme))
	meta.AddToGroupVersion(scheme, core.SchemeGroupVersion)
	when := meta.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	list := meta.ListMeta{ResourceVersion: "4711", Continue: "token", RemainingItemCount: p(int64(7))}
	object := func(name string) meta.ObjectMeta {
		return meta.ObjectMeta{
			Name: name, Namespace: "shop", UID: "9b2d7a3e-0000-4000-8000-000000000001", ResourceVersion: "12",
			Generation: 3, CreationTimestamp: when, Labels: map[string]string{"app": "web", "empty": ""},
			Annotations: map[string]string{"baton.dev/weight": "5"}, Finalizers: []string{"example.com/f"},
			OwnerReferences: []meta.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}},
			ManagedFields: []meta.ManagedFieldsEntry{
				{Manager: "kubelet", Operation: "Update", APIVersion: "v1", Time: &when, FieldsType: "FieldsV1",
					FieldsV1: &meta.FieldsV1{Raw: []byte(`{"f:status":{}}`)}, Subresource: "status"},
				{Manager: "baton-operator-cost", Operation: "Apply"},
			},
		}
	}
	pod := core.Pod{ObjectMeta: object("web-1"), Spec: core.PodSpec{NodeName: "n1",
		Containers: []core.Container{{Name: "main", Image: "localhost/app:1", Env: []core.EnvVar{{Name: "A", Value: "B"}}}}},
		Status: core.PodStatus{Phase: core.PodRunning, PodIP: "10.0.0.1", HostIP: "192.0.2.1", PodIPs: []core.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
			Conditions: []core.PodCondition{{Type: "PodScheduled", Status: "True"}, {Type: "Ready", Status: "False", Reason: "x", LastTransitionTime: when}}}}
	leaving := *pod.DeepCopy()
	leaving.Name = "web-2"
	leaving.DeletionTimestamp, leaving.DeletionGracePeriodSeconds = &when, p(int64(30))
	bare := core.Pod{ObjectMeta: meta.ObjectMeta{Name: "bare", Namespace: "shop"}}
	write("pods", &core.PodList{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list, Items: []core.Pod{pod, leaving, bare}})
	node := core.Node{ObjectMeta: object("n1"), Spec: core.NodeSpec{Unschedulable: true, PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, ProviderID: "x"},
		Status: core.NodeStatus{Conditions: []core.NodeCondition{{Type: "Ready", Status: "Unknown", LastHeartbeatTime: when}}, Images: []core.ContainerImage{{Names: []string{"i"}, SizeBytes: 5}}}}
	node.Namespace = ""
	write("nodes", &core.NodeList{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: list, Items: []core.Node{node, {ObjectMeta: meta.ObjectMeta{Name: "n2"}}}})
	service := core.Service{ObjectMeta: object("web"), Spec: core.ServiceSpec{Type: core.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
		Selector: map[string]string{"app": "web"}, IPFamilies: []core.IPFamily{core.IPv6Protocol, core.IPv4Protocol}, IPFamilyPolicy: p(core.IPFamilyPolicyPreferDualStack),
		Ports: []core.ServicePort{{Name: "http", Port: 80, Protocol: core.ProtocolTCP, TargetPort: intstr.FromInt32(8080), AppProtocol: p("http")}, {Port: 53, Protocol: core.ProtocolUDP, TargetPort: intstr.FromString("dns")}}}}
	external := core.Service{ObjectMeta: meta.ObjectMeta{Name: "out", Namespace: "shop"}, Spec: core.ServiceSpec{Type: core.ServiceTypeExternalName, ExternalName: "example.org"}}
	write("services", &core.ServiceList{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: list, Items: []core.Service{service, external}})
	slice := discovery.EndpointSlice{ObjectMeta: object("web-x7k2p"), AddressType: discovery.AddressTypeIPv4,
		Ports: []discovery.EndpointPort{{Name: p("http"), Port: p(int32(8080)), Protocol: p(core.ProtocolTCP)}, {Name: p("")}, {Port: p(int32(0))}},
		Endpoints: []discovery.Endpoint{
			{Addresses: []string{"10.0.0.1", "10.0.0.9"}, NodeName: p("n1"), Zone: p("z"), Hostname: p("h"), TargetRef: &core.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-1", UID: "u"},
				Conditions: discovery.EndpointConditions{Ready: p(true), Serving: p(false)}},
			{Addresses: []string{"10.0.0.2"}, Conditions: discovery.EndpointConditions{Ready: p(false), Serving: p(true), Terminating: p(true)}, DeprecatedTopology: map[string]string{"a": "b"}},
			{Addresses: []string{"10.0.0.3"}},
		}}
	write("endpointslices", &discovery.EndpointSliceList{TypeMeta: meta.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: list,
		Items: []discovery.EndpointSlice{slice, {ObjectMeta: meta.ObjectMeta{Name: "none", Namespace: "shop"}, AddressType: discovery.AddressTypeFQDN, Endpoints: []discovery.Endpoint{}}}})
	status := meta.Status{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Message: "too old resource version: 1 (32303)", Reason: "Expired", Code: 410}
	write("status", &status)

	// A watch: frames of a four-byte length and an event.
	pod.TypeMeta, leaving.TypeMeta = meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}, meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	mark := core.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: meta.ObjectMeta{ResourceVersion: "99", Annotations: map[string]string{"k8s.io/initial-events-end": "true"}}}
	var stream, lines bytes.Buffer
	for _, event := range []struct {
		kind   string
		object runtime.Object
	}{{"ADDED", &pod}, {"MODIFIED", &leaving}, {"DELETED", &leaving}, {"BOOKMARK", &mark}, {"ERROR", &status}} {
		var frame bytes.Buffer
		check(protobuf.NewRawSerializer(scheme, scheme).Encode(&meta.WatchEvent{Type: event.kind, Object: runtime.RawExtension{Raw: encode(event.object)}}, &frame))
		framed := protobuf.LengthDelimitedFramer.NewFrameWriter(&stream)
		_, err := framed.Write(frame.Bytes())
		check(err)
		object, err := json.Marshal(event.object)
		check(err)
		line, err := json.Marshal(map[string]any{"type": event.kind, "object": json.RawMessage(object)})
		check(err)
		lines.Write(append(line, '\n'))
	}
	check(os.WriteFile("watch.pb", stream.Bytes(), 0o644))
	check(os.WriteFile("watch.json", lines.Bytes(), 0o644))
}
