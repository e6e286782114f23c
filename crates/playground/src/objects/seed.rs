//! The initial objects: namespaces, nodes with their leases, running pods. Pure; the result is the
//! same every time except for the date.

use crate::objects::resources::ObjectKind;
use crate::objects::storage::store::Store;
use fastrand::Rng;
use serde_json::{Value, json};

/// The namespaces of pods, in rotation.
const POD_NAMESPACES: [&str; 4] = ["default", "team-a", "team-b", "kube-system"];
/// Namespaces without pods.
const EMPTY_NAMESPACES: [&str; 2] = ["kube-node-lease", "kube-public"];

/// Number of pods of one app.
const PODS_PER_APP: usize = 10;

/// A version 4 UUID from `rng`.
pub(crate) fn uuid(rng: &mut Rng) -> String {
    let bits = rng.u128(..) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}

/// A name suffix of `length` characters from Kubernetes' alphabet: no vowels and no ambiguous
/// characters.
pub(crate) fn name_suffix(rng: &mut Rng, length: usize) -> String {
    const ALPHABET: [char; 27] = [
        'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm', 'n', 'p', 'q', 'r', 's', 't', 'v', 'w',
        'x', 'z', '2', '4', '5', '6', '7', '8', '9',
    ];
    (0..length).filter_map(|_| rng.choice(ALPHABET)).collect()
}

/// The name of node `number`.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:04}")
}

/// Fills an empty store. A watch may start at the result, and no earlier.
pub(crate) fn seed_store(store: &mut Store, nodes: usize, pods: usize, now: &str) {
    // A fixed seed, so that all playgrounds are equal.
    let mut rng = Rng::with_seed(0x77_65_69_72);
    for name in POD_NAMESPACES.iter().chain(&EMPTY_NAMESPACES) {
        store.put(ObjectKind::Namespace, namespace(&mut rng, name, now));
        store.put(
            ObjectKind::ServiceAccount,
            service_account(&mut rng, name, now),
        );
        store.put(ObjectKind::ConfigMap, root_ca(&mut rng, name, now));
    }
    store.put(ObjectKind::Service, kubernetes_service(&mut rng, now));
    for number in 0..nodes {
        store.put(ObjectKind::Node, node(&mut rng, number, now));
        store.put(ObjectKind::Lease, lease(&mut rng, number, now));
    }
    for number in 0..pods {
        store.put(ObjectKind::Pod, pod(&mut rng, number, nodes, now));
    }
    store.clear_history();
}

/// Adds the objects that priority and fairness begins with. Each has a `kind`.
pub(crate) fn seed_flowcontrol(store: &mut Store, objects: Vec<Value>, now: &str) {
    let mut rng = Rng::with_seed(0x66_6c_6f_77);
    for mut object in objects {
        let kind = match object.get("kind").and_then(Value::as_str) {
            Some("FlowSchema") => ObjectKind::FlowSchema,
            _ => ObjectKind::PriorityLevelConfiguration,
        };
        let assigned = [
            ("uid", Value::from(uuid(&mut rng))),
            ("creationTimestamp", now.into()),
            ("generation", 1.into()),
        ];
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.extend(assigned.map(|(key, value)| (key.to_owned(), value)));
        }
        if let Some(object) = object.as_object_mut() {
            object.insert("status".to_owned(), json!({}));
        }
        store.put(kind, object);
    }
    store.clear_history();
}

fn namespace(rng: &mut Rng, name: &str, now: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "uid": uuid(rng),
            "creationTimestamp": now,
            "labels": {"kubernetes.io/metadata.name": name},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

fn service_account(rng: &mut Rng, namespace: &str, now: &str) -> Value {
    json!({"metadata": {
        "name": "default", "namespace": namespace, "uid": uuid(rng), "creationTimestamp": now,
    }})
}

fn root_ca(rng: &mut Rng, namespace: &str, now: &str) -> Value {
    json!({
        "metadata": {
            "name": "kube-root-ca.crt",
            "namespace": namespace,
            "uid": uuid(rng),
            "creationTimestamp": now,
        },
        "data": {"ca.crt": "-----BEGIN CERTIFICATE-----\nplayground\n-----END CERTIFICATE-----\n"},
    })
}

fn kubernetes_service(rng: &mut Rng, now: &str) -> Value {
    json!({
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "uid": uuid(rng),
            "creationTimestamp": now,
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"],
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
            "sessionAffinity": "None",
        },
        "status": {"loadBalancer": {}},
    })
}

fn node(rng: &mut Rng, number: usize, now: &str) -> Value {
    let name = node_name(number);
    let (third, fourth) = (number / 256 % 256, number % 256);
    let zone = ["a", "b", "c"].get(number % 3).copied().unwrap_or_default();
    let conditions = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ]
    .map(|(kind, status, reason)| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": reason,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    });
    let resources = json!({"cpu": "16", "memory": "65536000Ki", "pods": "110"});
    json!({
        "metadata": {
            "name": name,
            "uid": uuid(rng),
            "creationTimestamp": now,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/region": "eu-central-1",
                "topology.kubernetes.io/zone": format!("eu-central-1{zone}"),
            },
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": format!("10.{}.{fourth}.0/24", 100 + third)},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": format!("10.0.{third}.{fourth}")},
                {"type": "Hostname", "address": name},
            ],
            "allocatable": resources,
            "capacity": resources,
            "conditions": conditions,
            "nodeInfo": {
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.12.30-amd64",
                "kubeletVersion": "v1.36.2",
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 13 (trixie)",
            },
        },
    })
}

fn lease(rng: &mut Rng, number: usize, now: &str) -> Value {
    let name = node_name(number);
    json!({
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "uid": uuid(rng),
            "creationTimestamp": now,
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": now.replace('Z', ".000000Z"),
        },
    })
}

fn pod(rng: &mut Rng, number: usize, nodes: usize, now: &str) -> Value {
    let index = number % POD_NAMESPACES.len();
    let namespace = POD_NAMESPACES.get(index).copied().unwrap_or_default();
    let batch = number / POD_NAMESPACES.len() / PODS_PER_APP;
    let app = format!("web-{batch:02}");
    // Looks like the hash of a pod template.
    let template = format!("{:x}", 0x6d4c_0000_usize.wrapping_add(batch));
    let image = format!("registry.example.com/{namespace}/{app}:v1");
    json!({
        "metadata": {
            "name": format!("{app}-{template}-{}", name_suffix(rng, 5)),
            "generateName": format!("{app}-{template}-"),
            "namespace": namespace,
            "uid": uuid(rng),
            "creationTimestamp": now,
            "labels": {"app": app, "pod-template-hash": template, "team": namespace},
        },
        "spec": {
            "containers": [{
                "name": "app",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "env": [{"name": "TEAM", "value": namespace}],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "resources": {
                    "limits": {"memory": "256Mi"},
                    "requests": {"cpu": "100m", "memory": "128Mi"},
                },
            }],
            "nodeName": node_name(number % nodes.max(1)),
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
        },
        "status": pod_status(number, &image, now),
    })
}

fn pod_status(number: usize, image: &str, now: &str) -> Value {
    let (second, third) = (100 + number / 65_536 % 100, number / 256 % 256);
    let ip = format!("10.{second}.{third}.{}", number % 256);
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": now})
    });
    json!({
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "qosClass": "Burstable",
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": [{
            "name": "app",
            "image": image,
            "imageID": "",
            "ready": true,
            "restartCount": 0,
            "started": true,
            "state": {"running": {"startedAt": now}},
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::{name_suffix, seed_store, uuid};
    use crate::objects::resources::ObjectKind;
    use crate::objects::storage::store::Store;
    use fastrand::Rng;

    #[test]
    fn a_cluster_has_the_configured_objects() {
        let mut store = Store::new(10);
        seed_store(&mut store, 3, 20, "2026-11-21T00:00:00Z");
        assert_eq!(store.len(ObjectKind::Node), 3);
        assert_eq!(store.len(ObjectKind::Lease), 3);
        assert_eq!(store.len(ObjectKind::Pod), 20);
        assert_eq!(store.len(ObjectKind::Namespace), 6);
        assert!(
            store
                .get(ObjectKind::Namespace, "", "kube-system")
                .is_some()
        );
        let node = store.get(ObjectKind::Node, "", "node-0002").unwrap();
        assert!(
            (800..2000).contains(&node.json().len()),
            "{}",
            node.json().len()
        );
    }

    #[test]
    fn a_uuid_has_version_4() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..100 {
            let uuid = uuid(&mut rng);
            assert_eq!(uuid.len(), 36);
            assert_eq!(&uuid[14..15], "4");
            assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"));
        }
        assert_eq!(name_suffix(&mut rng, 5).len(), 5);
    }
}
