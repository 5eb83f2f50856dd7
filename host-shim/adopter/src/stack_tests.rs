//! Who gives whom a pointer into its stack, in the compiled object.
//!
//! Owns one rule, for Linux 7.2 (`bpf/client.h`, `struct transport`): what is given such a pointer
//! is called by those alone that were given one, or by a program itself.

use crate::object::OBJECT;
use libbpf_rs::{
    ReferencesType,
    btf::{Btf, BtfType, types},
};
use object::{
    Object, ObjectSection, ObjectSymbol, RelocationTarget, Section, SymbolKind, read::File as Elf,
};
use std::collections::{BTreeMap, BTreeSet};

/// `BPF_JMP | BPF_CALL` of `include/uapi/linux/bpf_common.h`, with the source `BPF_PSEUDO_CALL`, in
/// an instruction of 8 bytes.
const CALL: u8 = 0x85;
const OF_FUNCTION: u8 = 1;
const INSTRUCTION: u64 = 8;
/// What arguments point to that is on nobody's stack.
const ELSEWHERE: [&str; 6] = ["__sk_buff", "sk_buff", "sock", "tcp_sock", "bpf_sock", "net"];

/// The functions with an argument that may point into a stack.
fn given() -> BTreeSet<String> {
    let btf = Btf::from_raw("adopter", &OBJECT.0).expect("right BTF");
    let btf = btf.expect("the object has BTF");
    let named = |of: BtfType<'_>| of.name().map(|name| name.to_string_lossy().into_owned());
    let may_point_there = |argument: BtfType<'_>| {
        let argument = argument.skip_mods_and_typedefs();
        let pointed = types::Ptr::try_from(argument).ok();
        let pointed = pointed.map(|pointer| pointer.referenced_type().skip_mods_and_typedefs());
        pointed.is_some_and(|to| named(to).is_none_or(|name| !ELSEWHERE.contains(&name.as_str())))
    };
    btf.type_by_kind::<types::Func<'_>>()
        .filter(|function| {
            let prototype = types::FuncProto::try_from(function.referenced_type());
            let prototype = prototype.expect("a function has a prototype");
            let mut arguments = prototype.iter();
            arguments.any(|one| btf.type_by_id(one.ty).is_some_and(may_point_there))
        })
        .filter_map(|function| named(*function))
        .collect()
}

/// The functions of a section by their offsets.
type Functions = BTreeMap<u64, String>;

fn functions(elf: &Elf<'_>, section: &Section<'_, '_>) -> Functions {
    let here = |symbol: &object::Symbol<'_, '_>| {
        symbol.kind() == SymbolKind::Text && symbol.section_index() == Some(section.index())
    };
    let all = elf.symbols().filter(here);
    all.filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned()))).collect()
}

/// Who calls whom, among the functions of the object.
fn calls(elf: &Elf<'_>) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for section in elf.sections() {
        let own = functions(elf, &section);
        let code = section.data().expect("a section's data");
        let led: BTreeMap<_, _> = section.relocations().collect();
        for (at, instruction) in (0..).step_by(INSTRUCTION as usize).zip(code.chunks_exact(8)) {
            let Some((_, caller)) = own.range(..=at).next_back() else {
                continue;
            };
            if instruction[0] != CALL || instruction[1] >> 4 != OF_FUNCTION {
                continue;
            }
            let distance = i32::from_le_bytes(instruction[4..].try_into().expect("four bytes"));
            let symbol = led.get(&at).map(|relocation| match relocation.target() {
                RelocationTarget::Symbol(index) => elf.symbol_by_index(index).expect("a symbol"),
                other => panic!("{other:?}"),
            });
            let (base, index) = match &symbol {
                Some(symbol) => (symbol.address() as i64, symbol.section_index()),
                None => (at as i64, Some(section.index())),
            };
            // The others are the kernel's.
            let Some(index) = index else { continue };
            let to = base + (i64::from(distance) + 1) * INSTRUCTION as i64;
            let target = elf.section_by_index(index).expect("a section");
            let callee = functions(elf, &target).remove(&(to as u64));
            found.insert((caller.clone(), callee.expect("a function begins there")));
        }
    }
    found
}

#[test]
fn a_stack_is_handed_on_from_the_program_itself() {
    let elf = Elf::parse(&OBJECT.0[..]).expect("an object");
    let (calls, given) = (calls(&elf), given());
    let called: BTreeSet<_> = calls.iter().map(|(_, callee)| callee).collect();
    let lost: Vec<_> = calls
        .iter()
        .filter(|(caller, callee)| {
            given.contains(callee) && !given.contains(caller) && called.contains(caller)
        })
        .collect();
    assert!(calls.len() > 40 && given.len() > 20, "{calls:?} {given:?}");
    assert_eq!(lost, [] as [&(String, String); 0], "of {calls:?}");
}
