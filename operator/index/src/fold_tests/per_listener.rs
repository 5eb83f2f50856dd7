//! What listeners have of their own, and what the Service's port says where nobody else does.

use super::*;
use baton_api::{Algorithm, Protocol};

/// A Service whose port says what is spoken.
fn speaks(protocol: Option<Protocol>) -> Change {
    let Change::Service(key, Some(service)) = service("s") else {
        panic!("a Service");
    };
    let mut service = (*service).clone();
    service.ports[0].protocol = protocol;
    Change::Service(key, Some(Arc::new(service)))
}

fn in_force(index: &Index) -> baton_api::Policy {
    let mut all = index.snapshot("class");
    (**all.next().expect("a listener in force")).clone()
}

#[test]
fn the_services_port_says_the_protocol_where_nobody_else_does() {
    let mut index = index();
    for (by_port, said, expected) in [
        (true, None, Protocol::Http1),
        (true, Some(Protocol::Resp), Protocol::Resp),
        (false, Some(Protocol::Resp), Protocol::Http1),
        (true, Some(Protocol::None), Protocol::None),
    ] {
        let mut policy = policy(1, "s", 80);
        policy.listeners[0].protocol_by_port = by_port;
        add(&mut index, "p", policy);
        index.apply(speaks(said));
        let _ = index.fold(2);
        assert_eq!(in_force(&index).protocol, expected, "{by_port} {said:?}");
    }
    index.says("p Adoptable ProtocolNone: appProtocol");
}

#[test]
fn a_listener_has_its_own_in_place_of_the_policys() {
    let mut index = index();
    let mut policy = policy(1, "s", 80);
    let template = policy.template.clone().expect("good");
    policy.listeners[0].own = Some(Arc::new(baton_api::Policy {
        algorithm: Algorithm::Random,
        protocol: Protocol::Memcached,
        ..(*template).clone()
    }));
    let mut second = policy.listeners[0].clone();
    second.name = "second".into();
    second.port = 81;
    second.own = None;
    policy.listeners.push(second);
    add(&mut index, "p", policy);
    let _ = index.fold(2);
    let said = |name: &str| {
        let mut all = index.snapshot("class");
        let one = all.find(|one| one.name == name).expect("in force");
        (one.algorithm, one.protocol)
    };
    assert_eq!(said("ns/p/http"), (Algorithm::Random, Protocol::Memcached));
    assert_eq!(said("ns/p/second"), (template.algorithm, template.protocol));
}
