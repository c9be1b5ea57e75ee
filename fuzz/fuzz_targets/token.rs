//! `edgepass_fuzz::token` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edgepass_fuzz::token(data));
