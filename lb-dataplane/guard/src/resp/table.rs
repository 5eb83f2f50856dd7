//! What a command's name says: whether it only reads, changes the connection, or must pin it.
//!
//! Owns the lists; never looks at arguments.

use crate::pin::Pin;

/// The longest name below, `GEORADIUSBYMEMBER_RO`.
pub(super) const NAME_BYTES_MAX: usize = 20;

/// Commands whose answer, or arguments, count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Select,
    Auth,
    Reset,
    Quit,
    /// Only its first argument counts.
    Script,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Executing it twice does what executing it once does, because it changes nothing.
    Reads,
    Special(Kind),
    Pins(Pin),
    Other,
}

pub(super) fn class(name: &[u8]) -> Class {
    let mut upper = [0; NAME_BYTES_MAX];
    let Some(upper) = upper.get_mut(..name.len()) else {
        return Class::Other;
    };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    match &*upper {
        b"GET" | b"MGET" | b"EXISTS" | b"TTL" | b"PTTL" | b"EXPIRETIME" | b"PEXPIRETIME"
        | b"TYPE" | b"STRLEN" | b"GETRANGE" | b"SUBSTR" | b"GETBIT" | b"BITCOUNT" | b"BITPOS"
        | b"BITFIELD_RO" | b"LCS" | b"DUMP" | b"KEYS" | b"SCAN" | b"RANDOMKEY" | b"DBSIZE"
        | b"SORT_RO" => Class::Reads,
        b"HGET" | b"HMGET" | b"HGETALL" | b"HEXISTS" | b"HKEYS" | b"HVALS" | b"HLEN"
        | b"HSTRLEN" | b"HSCAN" | b"HRANDFIELD" => Class::Reads,
        b"LRANGE" | b"LLEN" | b"LINDEX" | b"LPOS" => Class::Reads,
        b"SMEMBERS" | b"SISMEMBER" | b"SMISMEMBER" | b"SCARD" | b"SINTER" | b"SUNION"
        | b"SDIFF" | b"SINTERCARD" | b"SRANDMEMBER" | b"SSCAN" => Class::Reads,
        b"ZRANGE" | b"ZREVRANGE" | b"ZRANGEBYSCORE" | b"ZREVRANGEBYSCORE" | b"ZRANGEBYLEX"
        | b"ZREVRANGEBYLEX" | b"ZSCORE" | b"ZMSCORE" | b"ZRANK" | b"ZREVRANK" | b"ZCARD"
        | b"ZCOUNT" | b"ZLEXCOUNT" | b"ZSCAN" | b"ZUNION" | b"ZINTER" | b"ZDIFF"
        | b"ZINTERCARD" | b"ZRANDMEMBER" => Class::Reads,
        b"GEOPOS"
        | b"GEODIST"
        | b"GEOHASH"
        | b"GEOSEARCH"
        | b"GEORADIUS_RO"
        | b"GEORADIUSBYMEMBER_RO"
        | b"XRANGE"
        | b"XREVRANGE"
        | b"XLEN"
        | b"XPENDING"
        | b"XINFO" => Class::Reads,
        b"PING" | b"ECHO" | b"TIME" | b"INFO" | b"COMMAND" | b"LOLWUT" | b"PUBSUB" => Class::Reads,

        b"MULTI" => Class::Special(Kind::Multi),
        b"EXEC" => Class::Special(Kind::Exec),
        b"DISCARD" => Class::Special(Kind::Discard),
        b"WATCH" => Class::Special(Kind::Watch),
        b"UNWATCH" => Class::Special(Kind::Unwatch),
        b"SELECT" => Class::Special(Kind::Select),
        b"AUTH" => Class::Special(Kind::Auth),
        b"RESET" => Class::Special(Kind::Reset),
        b"QUIT" => Class::Special(Kind::Quit),
        b"SCRIPT" => Class::Special(Kind::Script),

        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE"
        | b"SUNSUBSCRIBE" => Class::Pins(Pin::Subscribe),
        b"MONITOR" => Class::Pins(Pin::Monitor),
        b"SYNC" | b"PSYNC" | b"REPLCONF" => Class::Pins(Pin::Replication),
        // WAIT counts replicas of this connection's own writes.
        b"CLIENT" | b"READONLY" | b"READWRITE" | b"ASKING" | b"WAIT" | b"WAITAOF" => {
            Class::Pins(Pin::ClientState)
        }
        b"HELLO" => Class::Pins(Pin::Hello),
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_case() {
        assert_eq!(class(b"get"), Class::Reads);
        assert_eq!(class(b"GeoRadiusByMember_RO"), Class::Reads);
        assert_eq!(class(b"ExEc"), Class::Special(Kind::Exec));
        assert_eq!(class(b"hello"), Class::Pins(Pin::Hello));
        for other in
            [&b"SET"[..], b"BLPOP", b"GETDEL", b"GETEX", b"", b"a name longer than any", b"\0"]
        {
            assert_eq!(class(other), Class::Other, "{other:?}");
        }
    }
}
