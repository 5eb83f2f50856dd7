//! Why flows never move, in sentences: a part of `explain`. Pure.

/// What a pin means, and what can be done.
pub fn words(pin: &str) -> String {
    let words = match pin {
        "upgrade" => "it was upgraded to another protocol (HTTP 101), as a WebSocket is",
        "connect" => "it is a tunnel (HTTP `CONNECT`)",
        "bound_auth" => {
            "the connection itself is authenticated (NTLM or Negotiate), and no other Pod knows that"
        }
        "expect" => {
            "an answer came before a client that waits for `100 Continue` sent its body, so where the next request begins is open"
        }
        "tls" => {
            "it is TLS, whose state is in the Pod's process: end TLS in front of Baton to have flows moved"
        }
        "http2" => "it is HTTP/2 (or gRPC), whose state is in the Pod's process",
        "ssh" => "it is SSH, whose state is in the Pod's process",
        "server_first" => {
            "the server spoke first, so its protocol is not of requests and responses; `protocol: None` says so for the policy"
        }
        "subscribe" => "the client has subscribed (Redis), and the Pod sends without being asked",
        "monitor" => "the client monitors or watches the server",
        "replication" => "it is a replica's connection",
        "client_state" => {
            "a Redis command set state of the connection that cannot be restored elsewhere (`CLIENT`, `READONLY`, `WAIT`)"
        }
        "hello" => "`HELLO` changed the Redis protocol's version",
        "session" => "`AUTH` or `SELECT` cannot be remembered exactly",
        "session_refused" => {
            "the Pod that it was moved to did not take its session (`AUTH`, `SELECT`): do all Pods have the same users and databases?"
        }
        "protocol_changed" => {
            "the policy has had another `protocol` since it began, by which nobody followed it before"
        }
        "binary" => "it is the memcached binary protocol; only the text protocol is followed",
        "unparsable" => {
            "its bytes are not what the policy's `protocol` is, or servers read them in different ways: is `protocol` right?"
        }
        "gap" => "bytes of it were not seen by the dataplane",
        "pipelined" => {
            "requests overlapped, which the policy's `protocol` cannot follow: name the protocol that the Pods speak"
        }
        "pipeline_too_deep" => "more requests were outstanding at one time than are remembered",
        "head_too_long" => "a head or line was longer than what is followed",
        "small_mss" => {
            "the client's MSS is smaller than what kernels adopt, and the policy says `migration.method: Adoption`"
        }
        "sessions_full" => {
            "no room was left to remember its session (`AUTH`, `SELECT`) or transaction: raise `limits.respSessions` of the dataplanes"
        }
        "guards_full" => {
            "no room was left to follow its conversation: raise `limits.guardedFlows` of the dataplanes; it moves again once a request and its answer were followed"
        }
        other => return other.replace('_', " "),
    };
    words.to_owned()
}
