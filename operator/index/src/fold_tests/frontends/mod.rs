//! Services in front of dataplanes. What is said to be written is written into a small model of an
//! API server, which tells the index, until nothing is left to write.

mod leads;
mod owned;

use super::*;
use std::collections::{BTreeMap, BTreeSet};

const CLUSTER: &str = "endpointslice-controller";

/// The index, and what an API server has.
struct Scene {
    index: Index,
    services: BTreeMap<Key, Service>,
    slices: BTreeMap<Key, Slice>,
    /// Where the Service led each time that something was written: to nothing never is good.
    led: Vec<BTreeSet<String>>,
}

fn fronted(created: i64, service: &str, frontend: &str) -> Policy {
    Policy {
        frontend: Some(Arc::new(Frontend {
            service: frontend.into(),
            kind: "ClusterIP".into(),
            load_balancer_class: None,
            local: false,
            source_ranges: BTreeSet::new(),
            annotations: BTreeMap::new(),
        })),
        ..policy(created, service, 80)
    }
}

/// No policy has a frontend.
fn bare() -> Scene {
    Scene { index: index(), services: BTreeMap::new(), slices: BTreeMap::new(), led: Vec::new() }
}

fn scene() -> Scene {
    let mut scene = bare();
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    scene
}

impl Scene {
    #[track_caller]
    fn says(&self, said: &str) {
        self.index.says(said);
    }

    /// Folds and writes until nothing is left to write.
    fn settle(&mut self) {
        for _ in 0..10 {
            let update = self.index.fold(2);
            let writes: Vec<_> = update.fronts.into_iter().filter(|(_, w)| !w.is_empty()).collect();
            if writes.is_empty() {
                return;
            }
            for (key, writes) in writes {
                self.write(&key, &writes);
            }
        }
        panic!("it never comes to rest");
    }

    fn write(&mut self, key: &Key, writes: &FrontWrites) {
        if let Some(wanted) = &writes.make {
            let (policy, _) = writes.owner.clone().expect("an owner");
            self.service(key, made(wanted, &policy));
        }
        if let Some(selector) = &writes.restore {
            assert_eq!(&**selector, r#"{"app":"web"}"#);
            let mut service = self.services[key].clone();
            (service.selects, service.front) = (true, None);
            self.service(key, service);
        }
        for slice in &writes.slices {
            let name = Key::new(key.namespace.clone(), slice.name.clone());
            self.slice(&name, Some(stored(key, slice)));
        }
        for (name, _) in &writes.remove {
            let name = Key::new(key.namespace.clone(), name.clone());
            self.slice(&name, None);
        }
        if writes.unmake {
            self.services.remove(key);
            self.index.apply(Change::Service(key.clone(), None));
        }
        let led = self.leads_to(&key.name);
        self.led.push(led);
    }

    fn service(&mut self, key: &Key, service: Service) {
        self.services.insert(key.clone(), service.clone());
        self.index.apply(Change::Service(key.clone(), Some(Arc::new(service))));
    }

    fn slice(&mut self, key: &Key, slice: Option<Slice>) {
        match &slice {
            Some(slice) => self.slices.insert(key.clone(), slice.clone()),
            None => self.slices.remove(key),
        };
        self.index.apply(Change::Slice(key.clone(), slice.map(Arc::new)));
    }

    /// Where clients of a Service are led.
    fn leads_to(&self, service: &str) -> BTreeSet<String> {
        let of = self.slices.values().filter(|slice| &*slice.service == service);
        let each = of.flat_map(|s| s.ports.iter().map(move |p| (s, p.port)));
        let each = each.flat_map(|(s, port)| s.endpoints.iter().map(move |e| (e, port)));
        let ready = each.filter(|(e, _)| e.conditions.ready);
        ready.map(|(e, port)| format!("{}:{port}", e.address)).collect()
    }

    fn acknowledge(&mut self) {
        let revision = self.index.class("class").expect("it is there").revision;
        let acknowledged = Some(revision);
        report(&mut self.index, Report { acknowledged, ..Report::default() });
        self.settle();
    }

    fn port(&self, policy: &str) -> u16 {
        verdict(&self.index, policy).front.expect("a frontend").ports[0].1
    }

    fn dataplane(&mut self, change: impl FnOnce(&mut Pod)) {
        let Change::Pod(key, Some(pod)) = pod(200, Labels::from_iter([("app", "dataplane")]))
        else {
            panic!("a pod");
        };
        let mut pod = Pod::clone(&pod);
        change(&mut pod);
        self.index.apply(Change::Pod(key, Some(Arc::new(pod))));
        self.settle();
    }

    /// `web` as clients have it: with a selector, and slices that the cluster wrote.
    fn clients_service(&mut self) -> Service {
        let service = Service {
            ports: vec![ServicePort { name: "".into(), port: 80, protocol: None }],
            families: vec![Family::V4],
            external_name: false,
            selects: true,
            front: None,
        };
        self.service(&key("web"), service.clone());
        let Change::Slice(_, Some(slice)) = slice("web", &[(1, READY), (2, READY)]) else {
            panic!("a slice");
        };
        let mut slice = Slice::clone(&slice);
        slice.ports[0].name = "".into();
        self.slice(&key(CLUSTER), Some(slice));
        service
    }
}

fn front(policy: &str, made: bool, targets: &[(Text, u16, u16)]) -> Front {
    let shape = fronted(1, "s", "web").frontend.expect("a frontend");
    Front {
        uid: "service-uid".into(),
        policy: policy.into(),
        made,
        selector: (!made).then(|| r#"{"app":"web"}"#.into()),
        addresses: vec!["10.96.0.9".into(), "fd00::9".into()],
        shape: Frontend::clone(&shape),
        targets: targets.iter().map(|(_, port, target)| (*port, *target)).collect(),
        annotated: BTreeSet::new(),
        zonal: false,
        own_node: false,
        others: Vec::new(),
    }
}

fn made(wanted: &FrontService, policy: &str) -> Service {
    let ports = wanted.ports.iter();
    let mut front = front(policy, true, &wanted.ports);
    front.shape = Frontend::clone(&wanted.frontend);
    front.annotated = front.shape.annotations.keys().cloned().collect();
    Service {
        ports: ports
            .map(|(name, port, _)| ServicePort { name: name.clone(), port: *port, protocol: None })
            .collect(),
        families: wanted.families.clone(),
        external_name: false,
        selects: false,
        front: Some(Arc::new(front)),
    }
}

fn stored(service: &Key, slice: &FrontSlice) -> Slice {
    let endpoint = |e: &FrontEndpoint| SliceEndpoint {
        address: e.address,
        conditions: e.conditions,
        // Of another namespace than the slice's it is nobody's.
        pod: None,
        node: e.node.clone(),
    };
    Slice {
        service: service.name.clone(),
        ports: slice.ports.clone(),
        endpoints: slice.endpoints.iter().map(endpoint).collect(),
        writer: SliceWriter::Baton,
        uid: Some(Text::from("slice")),
        zones: slice.endpoints.iter().map(|e| e.zone.clone()).collect(),
    }
}

const PODS: [&str; 2] = ["10.0.0.1:8080", "10.0.0.2:8080"];

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}
