//! Extended registers (x87, SSE, AVX, AVX-512, PKRU ...) as an XSAVE area in the standard format: 512 bytes that all processors have, a
//! header, and components at places that the processor names. Places differ between processors (AMD has no room for MPX).
//!
//! ptrace shows the area with room for every component that the kernel supports. A task's own area is smaller: it has the components that
//! every program may use, and AMX tiles only after the first use of one. If a frame's area is larger than the task's own, `rt_sigreturn`
//! takes it for a frame without XSAVE and silently restores x87 and SSE alone (`check_xstate_in_sigframe`,
//! arch/x86/kernel/fpu/signal.c). So a copy's area has exactly the size of a task that has used no tile ([`carried`]).

use std::{io, sync::OnceLock};

use serde::{Deserialize, Serialize};
use sys::{ptrace::XSAVE_BYTES_MAX, xstate};

use super::ProgramImage;

/// Bytes of the part that all processors have (FXSAVE).
const LEGACY_BYTES: usize = 512;
/// Which components the area has in use (XSTATE_BV): the header's first word.
const HEADER: usize = LEGACY_BYTES;
/// Legacy part and header.
const AREA_BYTES_MIN: usize = LEGACY_BYTES + 64;
/// Components 0 and 1, x87 and SSE, are the legacy part.
const LEGACY: u64 = 3;
/// Components are bits of a word; the highest is no component.
const COMPONENTS: u32 = 63;

/// Which components an area has, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Format {
    /// Those that every program may use, one bit each; 0: there is no XSAVE.
    features: u64,
    /// Of [`Self::features`], those beyond the legacy part.
    components: Vec<Component>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Component {
    number: u32,
    offset: u32,
    size: u32,
}

impl Format {
    /// This host's. It is asked for once: in a virtual machine each question ends in the hypervisor.
    pub(crate) fn here() -> io::Result<&'static Self> {
        static HERE: OnceLock<Format> = OnceLock::new();
        if let Some(format) = HERE.get() {
            return Ok(format);
        }
        let format = match xstate::is_used() {
            true => Self::new(xstate::permitted()?, xstate::place),
            false => Self::default(),
        };
        Ok(HERE.get_or_init(|| format))
    }

    fn new(features: u64, place: impl Fn(u32) -> (u32, u32)) -> Self {
        let beyond = (2..COMPONENTS).filter(|number| features >> number & 1 == 1);
        let component = |number| {
            let (offset, size) = place(number);
            Component { number, offset, size }
        };
        Self { features: features | LEGACY, components: beyond.map(component).collect() }
    }

    /// Bytes of the area that ptrace shows on this host: it has room for every component that the kernel supports.
    pub(crate) fn shown_here() -> io::Result<usize> {
        static SHOWN: OnceLock<usize> = OnceLock::new();
        if let Some(bytes) = SHOWN.get() {
            return Ok(*bytes);
        }
        let bytes = match xstate::is_used() {
            true => Self::new(xstate::supported()?, xstate::place).bytes(),
            false => LEGACY_BYTES,
        };
        Ok(*SHOWN.get_or_init(|| bytes))
    }

    /// Components that an area has room for, one bit each; 0: it has no header.
    pub(crate) fn features(&self) -> u64 {
        self.features
    }

    /// Whether threads have rights with protection keys for memory.
    pub(crate) fn has_keys(&self) -> bool {
        const PKRU: u32 = 9;
        self.features >> PKRU & 1 == 1
    }

    /// Bytes of an area. The components' order is not that of their numbers (APX lies where MPX was).
    pub(crate) fn bytes(&self) -> usize {
        match self.features {
            0 => LEGACY_BYTES,
            _ => self.components.iter().map(Component::end).fold(AREA_BYTES_MIN, usize::max),
        }
    }

    /// Whether it can be one: sizes and places are computed with.
    fn is_sound(&self) -> bool {
        let in_bounds = |component: &Component| {
            component.number < COMPONENTS
                && component.offset as usize >= AREA_BYTES_MIN
                && component.end() <= XSAVE_BYTES_MAX
        };
        self.components.iter().all(in_bounds)
    }
}

impl Component {
    fn end(&self) -> usize {
        self.offset as usize + self.size as usize
    }

    fn bit(&self) -> u64 {
        1 << self.number
    }
}

/// Components that cannot be had, one bit each.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lacking(pub(crate) u64);

/// What a copy gets of the area that ptrace shows. Fails if components are in use that only a program has that asked for them: a copy's
/// threads have no room for them before they use them.
pub(crate) fn carried(shown: &[u8], format: &Format) -> Result<Vec<u8>, Lacking> {
    let mut area = shown.to_vec();
    match format.features {
        0 => area.truncate(LEGACY_BYTES),
        features => {
            let lacking = in_use(&area) & !features;
            if lacking != 0 {
                return Err(Lacking(lacking));
            }
            // What is cut off, or not there, is not in use.
            area.resize(format.bytes(), 0);
        }
    }
    Ok(area)
}

/// The same registers in another format.
pub(crate) fn moved(area: &[u8], from: &Format, to: &Format) -> Result<Vec<u8>, Lacking> {
    if from == to {
        return Ok(area.to_vec());
    }
    let used = if from.features == 0 { LEGACY } else { in_use(area) };
    let mut there = vec![0; to.bytes()];
    let legacy = LEGACY_BYTES.min(area.len());
    there[..legacy].copy_from_slice(&area[..legacy]);
    let mut lacking = used & !(to.features | LEGACY);
    for component in from.components.iter().filter(|component| used & component.bit() != 0) {
        let place = to.components.iter().find(|other| (other.number, other.size) == (component.number, component.size));
        match (place, area.get(component.offset as usize..component.end())) {
            (Some(place), Some(bytes)) => there[place.offset as usize..place.end()].copy_from_slice(bytes),
            _ => lacking |= component.bit(),
        }
    }
    if lacking != 0 {
        return Err(Lacking(lacking));
    }
    if to.features != 0 {
        there[HEADER..HEADER + 8].copy_from_slice(&used.to_le_bytes());
    }
    Ok(there)
}

/// An area as ptrace showed it, on a host that is not known. Components 0 to 4 are at the same places everywhere. Others are where this host has
/// them if its own areas are as long, `shown_here`.
fn carried_from_elsewhere(shown: &[u8], here: &Format, shown_here: usize) -> Result<Vec<u8>, Lacking> {
    const EVERYWHERE: u64 = 0x1f;
    let elsewhere = in_use(shown) & !EVERYWHERE;
    if elsewhere == 0 || shown.len() == shown_here || is_only_pkru(shown, here) {
        return carried(shown, here);
    }
    Err(Lacking(elsewhere))
}

/// Whether beyond AVX a thread has only PKRU in use, at this host's place. Nearly every thread has that, and components that are not in use are
/// shown as zeros.
fn is_only_pkru(shown: &[u8], here: &Format) -> bool {
    const PKRU: u32 = 9;
    const UP_TO_AVX: u64 = 0x7;
    const AVX_END: usize = 832;
    let Some(place) = here.components.iter().find(|component| component.number == PKRU) else { return false };
    let is_used = |at: usize| shown[at] != 0;
    let is_its = |at: &usize| (place.offset as usize..place.end()).contains(at);
    in_use(shown) & !UP_TO_AVX == place.bit()
        && (AVX_END..shown.len()).filter(is_its).any(is_used)
        && !(AVX_END..shown.len()).filter(|at| !is_its(at)).any(is_used)
}

/// Has the threads of a captured program in this host's format, in which ptrace shows areas of `shown_here` bytes.
pub(crate) fn fit(image: &mut ProgramImage, here: &Format, shown_here: usize) -> Result<(), Lacking> {
    let from = &image.extended.format;
    for thread in &mut image.threads {
        // Before version 3 a state had the areas as ptrace had shown them.
        let is_as_shown = from.features == 0 && thread.xsave.len() >= AREA_BYTES_MIN;
        thread.xsave = match is_as_shown {
            true => carried_from_elsewhere(&thread.xsave, here, shown_here),
            false => moved(&thread.xsave, from, here),
        }?;
    }
    image.extended.format = here.clone();
    Ok(())
}

/// Whether the areas of a decoded image are what its format says.
pub(crate) fn is_sound(image: &ProgramImage) -> bool {
    let format = &image.extended.format;
    let fits = |area: &[u8]| match format.features {
        0 => (LEGACY_BYTES..=XSAVE_BYTES_MAX).contains(&area.len()),
        _ => area.len() == format.bytes(),
    };
    format.is_sound() && image.threads.iter().all(|thread| fits(&thread.xsave))
}

fn in_use(area: &[u8]) -> u64 {
    match area.get(HEADER..HEADER + 8) {
        Some(word) => word.iter().rev().fold(0, |mask, byte| mask << 8 | u64::from(*byte)),
        None => LEGACY,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const AVX: u32 = 2;
    const MASKS: u32 = 5;
    const PKRU: u32 = 9;
    const TILE_CONFIG: u32 = 17;
    const TILES: u32 = 18;
    const APX: u32 = 19;

    /// What CPUID leaf 0xD says of each component: offset and size.
    fn intel(component: u32) -> (u32, u32) {
        match component {
            AVX => (576, 256),
            3 => (960, 64),
            4 => (1024, 64),
            MASKS => (1088, 64),
            6 => (1152, 512),
            7 => (1664, 1024),
            PKRU => (2688, 8),
            TILE_CONFIG => (2752, 64),
            TILES => (2816, 8192),
            APX => (960, 128),
            other => panic!("no component {other}"),
        }
    }

    fn amd(component: u32) -> (u32, u32) {
        match component {
            AVX => (576, 256),
            MASKS => (832, 64),
            6 => (896, 512),
            7 => (1408, 1024),
            PKRU => (2432, 8),
            other => panic!("no component {other}"),
        }
    }

    fn mask(components: &[u32]) -> u64 {
        components.iter().fold(LEGACY, |mask, component| mask | 1 << component)
    }

    fn avx() -> Format {
        Format::new(mask(&[AVX]), intel)
    }

    fn avx512() -> Format {
        Format::new(mask(&[AVX, MASKS, 6, 7, PKRU]), intel)
    }

    /// Sapphire Rapids: XCR0 is 0x600e7; tiles are not every program's.
    pub(crate) fn amx() -> Format {
        Format::new(mask(&[AVX, MASKS, 6, 7, PKRU, TILE_CONFIG]), intel)
    }

    fn apx() -> Format {
        Format::new(mask(&[AVX, MASKS, 6, 7, PKRU, TILE_CONFIG, APX]), intel)
    }

    fn zen() -> Format {
        Format::new(mask(&[AVX, MASKS, 6, 7, PKRU]), amd)
    }

    /// An area as ptrace shows it, with `used` in use; each component has bytes of its own number.
    pub(crate) fn shown(bytes: usize, used: u64, place: impl Fn(u32) -> (u32, u32)) -> Vec<u8> {
        let mut area = vec![0; bytes];
        area[..416].fill(1);
        for component in (2..COMPONENTS).filter(|component| used >> component & 1 == 1) {
            let (offset, size) = place(component);
            area[offset as usize..][..size as usize].fill(component as u8);
        }
        area[HEADER..HEADER + 8].copy_from_slice(&used.to_le_bytes());
        area
    }

    #[test]
    fn an_area_has_the_size_of_the_tasks_own() {
        let sizes = [Format::default(), Format::new(0, intel), avx(), avx512(), amx(), apx(), zen()].map(|l| l.bytes());
        assert_eq!(sizes, [512, 576, 832, 2696, 2816, 2816, 2440]);
    }

    #[test]
    fn components_are_where_they_were_and_tiles_that_are_not_in_use_are_cut_off() {
        let used = mask(&[AVX, MASKS, 6, 7, PKRU, TILE_CONFIG]);
        let shown = shown(11_008, used, intel);
        assert_eq!(carried(&shown, &amx()).unwrap(), shown[..2816]);
        let used = used | 1 << APX;
        let shown = self::shown(11_008, used, intel);
        assert_eq!(carried(&shown, &apx()).unwrap(), shown[..2816]);
    }

    #[test]
    fn tiles_in_use_are_refused() {
        let shown = shown(11_008, mask(&[AVX, TILE_CONFIG, TILES]), intel);
        assert_eq!(carried(&shown, &amx()), Err(Lacking(1 << TILES)));
    }

    #[test]
    fn without_xsave_the_legacy_part_is_all_there_is() {
        let area = carried(&shown(512 + 64, LEGACY, intel)[..512], &Format::default()).unwrap();
        assert_eq!(area.len(), 512);
        // It fits a processor that has XSAVE, where the header says that it is all there is.
        let there = moved(&area, &Format::default(), &amx()).unwrap();
        assert_eq!((there.len(), in_use(&there), &there[..512]), (2816, LEGACY, &area[..]));
        assert_eq!(moved(&there, &amx(), &Format::default()).unwrap(), area);
    }

    #[test]
    fn another_processor_has_the_same_components_elsewhere() {
        let used = mask(&[AVX, MASKS, 6, 7, PKRU]);
        let area = carried(&shown(11_008, used, intel), &amx()).unwrap();
        let there = moved(&area, &amx(), &zen()).unwrap();
        assert_eq!(there, carried(&shown(2440, used, amd), &zen()).unwrap());
        assert_eq!(moved(&there, &zen(), &amx()).unwrap(), area);
    }

    #[test]
    fn what_another_processor_lacks_is_named_if_it_is_in_use() {
        let area = carried(&shown(2696, mask(&[AVX, MASKS]), intel), &avx512()).unwrap();
        assert_eq!(moved(&area, &avx512(), &avx()), Err(Lacking(1 << MASKS)));
        let area = carried(&shown(2696, mask(&[AVX]), intel), &avx512()).unwrap();
        assert_eq!(moved(&area, &avx512(), &avx()).unwrap().len(), 832);
    }

    #[test]
    fn an_old_area_from_a_host_with_other_places_is_refused() {
        const AMX_BYTES: usize = 11_008;
        const ZEN_BYTES: usize = 2440;
        let usual = mask(&[AVX, PKRU]);
        let large = mask(&[AVX, MASKS, 7, PKRU]);
        let amx_area = |used| shown(AMX_BYTES, used, intel);
        let zen_area = |used| shown(ZEN_BYTES, used, amd);
        // A host like this one.
        let area = amx_area(large);
        assert_eq!(carried_from_elsewhere(&area, &amx(), AMX_BYTES), carried(&area, &amx()));
        // Places that all hosts have.
        let area = zen_area(mask(&[AVX]));
        assert_eq!(carried_from_elsewhere(&area, &amx(), AMX_BYTES), carried(&area, &amx()));
        let lacking = Err(Lacking(1 << MASKS | 1 << 7 | 1 << PKRU));
        assert_eq!(carried_from_elsewhere(&zen_area(large), &amx(), AMX_BYTES), lacking);
        assert_eq!(carried_from_elsewhere(&amx_area(large), &zen(), ZEN_BYTES), lacking);
        // What nearly every thread has: elsewhere on AMD, at the same place without tiles.
        assert_eq!(carried_from_elsewhere(&zen_area(usual), &amx(), AMX_BYTES), Err(Lacking(1 << PKRU)));
        assert_eq!(carried_from_elsewhere(&amx_area(usual), &zen(), ZEN_BYTES), Err(Lacking(1 << PKRU)));
        let area = amx_area(usual);
        assert_eq!(carried_from_elsewhere(&area, &avx512(), 2696), carried(&area, &avx512()));
    }

    #[test]
    fn this_hosts_format_is_that_of_a_fresh_process() {
        let here = Format::here().unwrap();
        assert!(here.is_sound() && here.bytes() >= LEGACY_BYTES, "{here:?}");
        if here.features != 0 {
            let supported = sys::xstate::supported().unwrap();
            assert_eq!(here.features & !supported, 0, "{supported:x}");
        }
    }

    #[test]
    fn ptrace_shows_an_area_of_the_length_that_is_expected() {
        use sys::ptrace;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        ptrace::seize(pid, 0).unwrap();
        ptrace::interrupt(pid).unwrap();
        ptrace::wait(pid).unwrap();
        let shown = ptrace::xsave(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shown.len(), Format::shown_here().unwrap());
    }
}
