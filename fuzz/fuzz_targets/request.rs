//! `edgepass_fuzz::request` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edgepass_fuzz::request(data));
