//! A pod whose packet rules redirect connections adopts nothing, whoever made the rules and by
//! which tool, and whenever. Needs root.

use crate::common::{
    Lab,
    answer::{ACKED, FORGOTTEN, KEY, PACKET_RULES, PORT, READY, SEQ, adopter, ask},
    ends, run,
    segment::Message,
};
use baton_adopter::{Adopter, Attachment, Outcome};
use std::net::TcpListener;

/// Ways to have another listener get what comes to port 8080, of both families.
const REDIRECTING: [(&str, &[&str]); 6] = [
    (
        "NAT in nftables' table `nat`, chain `PREROUTING`",
        &["iptables-nft -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006"],
    ),
    (
        "NAT in nftables' table `nat`, chain `PREROUTING`",
        &[
            "ip6tables-nft -t nat -N PROXY",
            "ip6tables-nft -t nat -A PREROUTING -p tcp -j PROXY",
            "ip6tables-nft -t nat -A PROXY -p tcp -j DNAT --to-destination [fd07::1]:15006",
        ],
    ),
    (
        "NAT in iptables-legacy's table `nat`",
        &["iptables-legacy -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006"],
    ),
    (
        "NAT in ip6tables-legacy's table `nat`",
        &["ip6tables-legacy -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006"],
    ),
    (
        "TPROXY in iptables-legacy's table `mangle`",
        &[
            "iptables-legacy -t mangle -N PROXY",
            "iptables-legacy -t mangle -A PROXY -p tcp -j TPROXY --on-port 15006 --tproxy-mark 1",
        ],
    ),
    (
        "TPROXY in nftables' table `mangle`, chain `PREROUTING`",
        &["ip6tables-nft -t mangle -A PREROUTING -p tcp -j TPROXY --on-port 15006 --tproxy-mark 1"],
    ),
];

/// The same by chains of nftables, of both families at once.
const REDIRECTING_NFT: [(&str, &str); 6] = [
    ("NAT", "type nat hook prerouting priority -100; tcp dport 8080 redirect to :15006"),
    ("NAT", "type nat hook prerouting priority -100; dnat ip to tcp dport map { 8080 : 10.7.0.1 }"),
    ("TPROXY", "type filter hook prerouting priority -150; meta l4proto tcp tproxy to :15006"),
    (
        "writing of addresses or ports",
        "type filter hook prerouting priority -300; tcp dport 8080 tcp dport set 15006",
    ),
    (
        "writing of addresses or ports",
        "type filter hook prerouting priority -300; ip daddr 10.7.0.1 ip daddr set 10.7.0.9",
    ),
    (
        "a rule that tells SYNs from other segments",
        "type filter hook prerouting priority -150; tcp flags syn tproxy to :15006",
    ),
];

/// A table with one chain.
fn own(chain: &str) -> String {
    format!("table inet own {{\n chain in {{ {chain}; }}\n }}\n")
}

struct Pod {
    lab: Lab,
    adopter: Adopter,
    attachment: Attachment,
    listener: TcpListener,
}

impl Pod {
    fn new(prepare: impl FnOnce(&Lab)) -> Self {
        let lab = Lab::new();
        prepare(&lab);
        let (pod, _) = ends(false, 8080, PORT);
        let listener = lab.listen(pod);
        let (adopter, attachment) = adopter(&lab);
        Self { lab, adopter, attachment, listener }
    }

    fn within(lab: &Lab, commands: &[&str]) {
        for command in commands {
            run(&format!("ip netns exec {} {command}", lab.netns_name()));
        }
    }

    fn nft(lab: &Lab, rules: &str) {
        let file = std::env::temp_dir().join(format!("{}.nft", crate::common::unique()));
        std::fs::write(&file, rules).expect("write");
        Self::within(lab, &[&format!("nft -f {}", file.display())]);
        std::fs::remove_file(file).expect("remove");
    }

    fn look(&mut self) -> bool {
        let netns = self.lab.netns();
        let looked = self.adopter.look_at_rules(&netns, &mut self.attachment);
        looked.expect("look")
    }

    fn probe(&self) -> u16 {
        // Not that of a connection, whose end may be under way.
        let (pod, ours) = ends(false, 8080, PORT + 100);
        ask(&self.lab, Message::probe(), ours, pod).0
    }

    /// Neither is there a connection, nor does another look at an adoption that was refused change
    /// that.
    fn refuses(&self, port: u16) {
        let (pod, ours) = ends(false, 8080, port);
        let sockets = || self.lab.sockets(8080) + self.lab.sockets(15006);
        let before = sockets();
        assert_eq!(self.probe(), PACKET_RULES);
        for _ in 0..2 {
            assert_eq!(ask(&self.lab, Message::adopt(), ours, pod), (PACKET_RULES, 0));
        }
        assert_eq!(sockets(), before);
        let forget = ask(&self.lab, Message::forget(), ours, pod);
        assert_eq!(forget.0, FORGOTTEN);
    }

    fn adopts(&self, port: u16) {
        let (pod, ours) = ends(false, 8080, port);
        assert_eq!(self.probe(), READY);
        let adopt = Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY);
        self.lab.send(&adopt);
        assert_eq!(self.listener.accept().expect("accept").1, ours);
    }
}

#[test]
fn nothing_is_adopted_where_rules_redirect_however_they_were_made() {
    for (place, commands) in REDIRECTING {
        let pod = Pod::new(|lab| Pod::within(lab, commands));
        let refusal = pod.attachment.refusal().expect("refused");
        assert!(refusal.contains(place), "{place}: {refusal}");
        pod.refuses(PORT);
        assert!(pod.lab.count(&pod.adopter, Outcome::PacketRules) >= 3);
    }
    for (how, rule) in REDIRECTING_NFT {
        let pod = Pod::new(|lab| Pod::nft(lab, &own(rule)));
        let refusal = pod.attachment.refusal().expect("refused");
        let place = format!("{how} in nftables' table `own`, chain `in`");
        assert!(refusal.contains(&place), "{rule}: {refusal}");
        pod.refuses(PORT);
    }
}
#[test]
fn nothing_is_adopted_where_the_pod_translates_what_it_sends() {
    for (place, rules) in [
        (
            "`own`, chain `out`",
            "table inet own {
                chain out { type nat hook output priority -100; tcp dport 81 redirect to :82; }
            }",
        ),
        (
            "`own`, chain `post`",
            "table ip own {
                chain post { type nat hook postrouting priority 100; oifname eth9 masquerade; }
            }",
        ),
    ] {
        let pod = Pod::new(|lab| Pod::nft(lab, rules));
        let refusal = pod.attachment.refusal().expect("refused");
        assert!(refusal.contains(place), "{refusal}");
        pod.refuses(PORT);
    }
    // To ask for the table makes it, and with it NAT.
    let pod = Pod::new(|lab| Pod::within(lab, &["iptables-legacy -t nat -L"]));
    let refusal = pod.attachment.refusal().expect("refused");
    assert!(refusal.contains("NAT in iptables-legacy"), "{refusal}");
    pod.refuses(PORT);
}

/// Rules by which a SYN does not reach the listener, and a segment without SYN does, of which no
/// word says that they redirect.
const FOR_SYNS_ALONE: [&str; 5] = [
    "type filter hook input priority 0; tcp flags & (syn | ack) == syn drop",
    "type filter hook prerouting priority -300; tcp option maxseg size > 0 drop",
    "type filter hook input priority 0; ct state new tcp flags syn reject",
    "type filter hook prerouting priority 0; socket wildcard 1 accept",
    "type filter hook prerouting priority 0; @th,104,8 & 0x12 == 0x02 drop",
];
const FOR_SYNS_ALONE_OF_IPTABLES: [&str; 5] = [
    "iptables-nft -A INPUT -p tcp --syn -j DROP",
    "ip6tables-nft -t raw -A PREROUTING -p tcp --tcp-option 2 -j DROP",
    "iptables-legacy -A INPUT -p tcp --dport 8080 --syn -j REJECT",
    "ip6tables-legacy -A INPUT -p tcp -m state --state NEW -m tcp --syn -j DROP",
    "iptables-legacy -t raw -A PREROUTING -p tcp -m u32 --u32 0=0 -j DROP",
];

#[test]
fn nothing_is_adopted_where_rules_are_for_syns_alone() {
    let tells = "a rule that tells SYNs from other segments in";
    for rule in FOR_SYNS_ALONE {
        let pod = Pod::new(|lab| {
            Pod::nft(lab, &own(rule));
        });
        let refusal = pod.attachment.refusal().expect(rule);
        assert!(refusal.contains(tells), "{rule}: {refusal}");
        pod.refuses(PORT);
    }
    for command in FOR_SYNS_ALONE_OF_IPTABLES {
        let pod = Pod::new(|lab| Pod::within(lab, &[command]));
        let refusal = pod.attachment.refusal().expect(command);
        assert!(refusal.contains(tells), "{command}: {refusal}");
        pod.refuses(PORT);
    }
}

/// Connections that are tracked anyway are translated, if only to what they were.
#[test]
fn a_chain_of_nat_without_rules_counts_where_connections_are_tracked() {
    const IDLE: &str =
        "table ip idle {\n chain in { type nat hook prerouting priority -100; }\n }\n";
    let tracking = |rule: &str| {
        format!("{IDLE}{}", own(&format!("type filter hook input priority 0; {rule}")))
    };
    let refused = "NAT in nftables' table `idle`, chain `in`";
    for rule in ["ct state invalid drop", "ct count over 1000 drop"] {
        let pod = Pod::new(|lab| Pod::nft(lab, &tracking(rule)));
        let refusal = pod.attachment.refusal().expect(rule);
        assert!(refusal.contains(refused), "{rule}: {refusal}");
        pod.refuses(PORT);
    }
    for tool in ["iptables-nft", "iptables-legacy"] {
        let pod = Pod::new(|lab| {
            Pod::nft(lab, IDLE);
            let rule = "-A INPUT -m conntrack --ctstate INVALID -j DROP";
            Pod::within(lab, &[&format!("{tool} {rule}")]);
        });
        let refusal = pod.attachment.refusal().expect(tool);
        assert!(refusal.contains(refused), "{tool}: {refusal}");
        pod.refuses(PORT);
    }
    let pod = Pod::new(|lab| Pod::nft(lab, &tracking("tcp dport 9 drop")));
    assert_eq!(pod.attachment.refusal(), None);
    pod.adopts(PORT);
}

/// Tables that are there, so that the hooks stay what they are when rules come into them.
const HARMLESS: [&str; 6] = [
    "iptables-legacy -A INPUT -p tcp --dport 9 -j DROP",
    "iptables-legacy -t raw -A PREROUTING -p tcp --dport 9 -j DROP",
    "iptables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-mark 7",
    "ip6tables-legacy -A INPUT -p tcp --dport 9 -j DROP",
    "ip6tables-legacy -t raw -A PREROUTING -p tcp --dport 9 -j DROP",
    "ip6tables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-mark 7",
];

/// The program compares what it finds with what was read: no adoption passes under rules that are
/// younger, of either family and by either tool.
#[test]
fn rules_that_nobody_has_read_stop_adoptions_until_somebody_does() {
    let mut changes: Vec<String> = Vec::new();
    for (_, commands) in REDIRECTING {
        changes.push(commands.join("\n"));
    }
    changes.extend(FOR_SYNS_ALONE_OF_IPTABLES.map(str::to_owned));
    changes.push(
        "iptables-legacy -t mangle -A PREROUTING -p tcp --syn -j TPROXY --on-port 15006 --tproxy-mark 1"
            .to_owned(),
    );
    for change in changes {
        for prepared in [false, true] {
            let mut pod = Pod::new(|lab| Pod::within(lab, if prepared { &HARMLESS } else { &[] }));
            pod.adopts(PORT);
            for command in change.lines() {
                Pod::within(&pod.lab, &[command]);
            }
            pod.refuses(PORT + 1);
            assert!(pod.look(), "{change}");
            pod.refuses(PORT + 2);
        }
    }
    let rules = REDIRECTING_NFT.map(|(_, rule)| rule);
    for rule in rules.iter().chain(&FOR_SYNS_ALONE) {
        let mut pod = Pod::new(|_| ());
        pod.adopts(PORT);
        Pod::nft(&pod.lab, &own(rule));
        pod.refuses(PORT + 1);
        assert!(pod.look(), "{rule}");
    }
}

#[test]
fn rules_that_change_and_redirect_nothing_stop_adoptions_until_they_are_read() {
    let mut pod = Pod::new(|_| ());
    for (port, command) in [
        (1, "nft add table inet own"),
        (4, "iptables-legacy -A INPUT -p tcp --dport 9 -j DROP"),
        (7, "iptables-legacy -A INPUT -p tcp --dport 10 -j DROP"),
        (10, "ip6tables-legacy -D INPUT -p tcp --dport 9 -j DROP"),
    ] {
        if command.contains(" -D ") {
            Pod::within(&pod.lab, &[&command.replace(" -D ", " -A ")]);
            pod.look();
        }
        pod.adopts(PORT + port);
        Pod::within(&pod.lab, &[command]);
        pod.refuses(PORT + port + 1);
        assert!(!pod.look(), "{command}: they redirect nothing");
        pod.adopts(PORT + port + 2);
    }
}

/// The kernel often puts the new rules of a table of x_tables where older ones were.
#[test]
fn rules_that_are_replaced_twice_by_as_many_are_others() {
    let mut pod = Pod::new(|lab| Pod::within(lab, &HARMLESS));
    for tool in ["iptables-legacy", "ip6tables-legacy"] {
        for port in 100..130 {
            for port in [99, port] {
                let rule = format!("{tool} -R INPUT 1 -p tcp --dport {port} -j DROP");
                Pod::within(&pod.lab, &[&rule]);
            }
            assert_eq!(pod.probe(), PACKET_RULES, "{tool}, port {port}");
            pod.look();
            assert_eq!(pod.probe(), READY, "{tool}, port {port}");
        }
    }
}

#[test]
fn rules_that_neither_redirect_nor_translate_are_none() {
    let pod = Pod::new(|lab| {
        Pod::nft(
            lab,
            "table inet own {
                chain in { type filter hook input priority 0; tcp dport 9 drop; ip dscp set cs1; }
                chain state { type filter hook input priority 1; ct state invalid drop; }
            }",
        );
        Pod::within(
            lab,
            &[
                "iptables-legacy -t mangle -A PREROUTING -p tcp -j MARK --set-mark 7",
                "ip6tables-legacy -t mangle -L",
            ],
        );
    });
    assert_eq!(pod.attachment.refusal(), None);
    pod.adopts(PORT);
    assert_eq!(pod.lab.count(&pod.adopter, Outcome::PacketRules), 0);
}

#[test]
fn rules_that_come_and_go_while_the_adopter_is_there_are_found_at_the_next_look() {
    let mut pod = Pod::new(|_| ());
    pod.adopts(PORT);
    assert!(!pod.look(), "nothing changed");
    for (port, tool, goes) in [(1, "iptables-nft", true), (3, "iptables-legacy", false)] {
        let rule = |what| {
            format!(
                "{tool} -t nat -{what} PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006"
            )
        };
        Pod::within(&pod.lab, &[&rule("A")]);
        assert!(pod.look(), "{tool}");
        assert!(!pod.look(), "{tool}: the same as before");
        pod.refuses(PORT + port);
        Pod::within(&pod.lab, &[&rule("D")]);
        // The table stays where it is legacy's, and with it NAT.
        assert_eq!(pod.look(), goes, "{tool}");
        if goes {
            pod.adopts(PORT + port + 1);
        } else {
            pod.refuses(PORT + port + 1);
        }
    }
}

/// Who has many rules is not read for ever.
#[test]
fn more_rules_than_are_read_count_as_redirecting() {
    let rules = "tcp dport 9 drop\n".repeat(4_097);
    let pod = Pod::new(|lab| {
        Pod::nft(
            lab,
            &format!(
                "table inet many {{ chain in {{ type filter hook input priority 0; {rules}\n }}\n }}"
            ),
        );
    });
    let refusal = pod.attachment.refusal().expect("refused");
    assert!(refusal.contains("more than 4096"), "{refusal}");
    pod.refuses(PORT);

    let rules = "-A INPUT -p tcp --dport 9 -j DROP\n".repeat(200);
    let file = std::env::temp_dir().join(format!("{}.rules", crate::common::unique()));
    std::fs::write(&file, format!("*filter\n{rules}COMMIT\n")).expect("write");
    let restore = format!("iptables-legacy-restore {}", file.display());
    let pod = Pod::new(|lab| Pod::within(lab, &[&restore]));
    std::fs::remove_file(file).expect("remove");
    let refusal = pod.attachment.refusal().expect("refused");
    assert!(refusal.contains("32 KiB"), "{refusal}");
    pod.refuses(PORT);
}
