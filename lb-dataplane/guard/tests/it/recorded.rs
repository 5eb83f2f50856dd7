//! Conversations of real servers (nginx, redis, memcached), recorded on loopback, with what must be
//! true at each point.

use std::{fs, path::Path};

#[test]
fn recorded_conversations() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the folder of recordings") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a recording");
        assert!(text.contains("\n= "), "{path:?} demands nothing");
        crate::support::check(&text);
        count += 1;
    }
    assert!(count >= 19, "{count} recordings");
}
