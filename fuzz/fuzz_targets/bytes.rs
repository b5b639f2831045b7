//! Makes decisions from the bytes of the fuzzer.

pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a number of any size: a count of bits, and then that many bits.
    pub fn number(&mut self) -> Option<u64> {
        let bits = u32::from(self.byte()?) % 64;
        let mut number = 0;
        for _ in 0..bits.div_ceil(8) {
            number = number << 8 | u64::from(self.byte()?);
        }
        Some(number & ((1 << bits) - 1))
    }
}
