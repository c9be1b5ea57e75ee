;; A `node` component that does what no good component does. The path says what:
;;   /echo    answers 200 with the head and the body it was given
;;   /trap    traps
;;   /loop    computes for ever
;;   /grow    asks for memory until there is no more; 200 when it is refused, else it traps
;;   /keep    keeps 4 MiB more with each request
;;   /once    reads a key, and traps unless there is a value
;;   /never   reads a key whose value never comes
;;   /wrong   answers with status 99
;;   /slow    reads a key whose value comes when the test says so
;;   /nap     reads a key, and sleeps 100 ms for each byte of the body
(module
  (import "edgepass:node/store@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "edgepass:node/runtime@0.1.0" "sleep-ms" (func $sleep (param i32)))
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 65536))
  ;; Calls so far, for those that do something now and then.
  (global $calls (mut i32) (i32.const 0))

  ;; 0: the description, 100: the answer, 200: a key list, 300: what `get` gives
  (data (i32.const 400) "1.2.3")
  (data (i32.const 410) "abc")
  (data (i32.const 420) "2026-01-01T00:00:00Z")
  (data (i32.const 440) "x-echo")
  (data (i32.const 450) "server-timing: a;dur=1\nx-guest: yes\nconnection: close\nbad line\n")
  (data (i32.const 520) "$SETTING")
  (data (i32.const 600) "\b8\01\00\00\06\00\00\00")

  (func (export "cabi_realloc") (param $old i32) (param $had i32) (param $align i32) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get $size)))
    (block $fits
      (br_if $fits (i32.le_u (global.get $next) (i32.mul (memory.size) (i32.const 65536))))
      (br_if $fits (i32.ne (i32.const -1) (memory.grow (i32.add (i32.const 1)
        (i32.shr_u (local.get $size) (i32.const 16))))))
      (unreachable))
    (local.get $at))

  (func $pair (param $at i32) (param $pointer i32) (param $length i32)
    (i32.store (local.get $at) (local.get $pointer))
    (i32.store offset=4 (local.get $at) (local.get $length)))

  (func (export "edgepass:node/service@0.1.0#describe") (result i32)
    (call $pair (i32.const 0) (i32.const 400) (i32.const 5))
    (call $pair (i32.const 8) (i32.const 410) (i32.const 3))
    (call $pair (i32.const 16) (i32.const 420) (i32.const 20))
    (call $pair (i32.const 24) (i32.const 600) (i32.const 1))
    (call $pair (i32.const 32) (i32.const 0) (i32.const 0))
    (call $pair (i32.const 608) (i32.const 520) (i32.const 8))
    (call $pair (i32.const 40) (i32.const 608) (i32.const $PROBLEMS))
    (i32.const 0))

  ;; Reads the key that is the target, and says whether it has a value.
  (func $has (param $target i32) (param $length i32) (result i32)
    (call $pair (i32.const 200) (local.get $target) (local.get $length))
    (call $get (i32.const 200) (i32.const 1) (i32.const 300))
    (if (i32.load8_u (i32.const 300)) (then (unreachable)))
    (i32.load8_u (i32.load (i32.const 304))))

  (func (export "edgepass:node/service@0.1.0#handle")
    (param $id i64) (param $method i32) (param $method-length i32) (param $target i32) (param $target-length i32)
    (param $head i32) (param $head-length i32) (param $body i32) (param $body-length i32)
    (param $client i32) (param $client-length i32) (param $trace i32) (param $trace-length i32)
    (param $budget i32) (param $shadow i32) (result i32)
    (local $letters i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    ;;$FIRST
    ;; The first two letters after the slash tell the paths apart.
    (local.set $letters (i32.load16_u offset=1 (local.get $target)))
    (i32.store16 (i32.const 100) (i32.const 200))
    (call $pair (i32.const 104) (i32.const 450) (i32.const 64))
    (call $pair (i32.const 112) (i32.const 0) (i32.const 0))
    (if (i32.eq (local.get $letters) (i32.const 0x6365)) (then ;; ec
      (call $pair (i32.const 104) (local.get $head) (local.get $head-length))
      (call $pair (i32.const 112) (local.get $body) (local.get $body-length))))
    (if (i32.eq (local.get $letters) (i32.const 0x7274)) (then (unreachable))) ;; tr
    (if (i32.eq (local.get $letters) (i32.const 0x6f6c)) (then (loop $on (br $on)))) ;; lo
    (if (i32.eq (local.get $letters) (i32.const 0x7267)) (then ;; gr
      (loop $on (br_if $on (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
      (if (i32.gt_u (memory.size) (i32.const 1024)) (then (unreachable)))))
    (if (i32.eq (local.get $letters) (i32.const 0x656b)) (then ;; ke
      (drop (memory.grow (i32.const 64)))))
    (if (i32.eq (local.get $letters) (i32.const 0x6e6f)) (then ;; on
      (if (i32.eqz (call $has (local.get $target) (local.get $target-length))) (then (unreachable)))))
    (if (i32.eq (local.get $letters) (i32.const 0x656e)) (then ;; ne
      (drop (call $has (local.get $target) (local.get $target-length)))))
    (if (i32.eq (local.get $letters) (i32.const 0x6c73)) (then ;; sl
      (drop (call $has (local.get $target) (local.get $target-length)))))
    (if (i32.eq (local.get $letters) (i32.const 0x616e)) (then ;; na
      (drop (call $has (local.get $target) (local.get $target-length)))
      (call $sleep (i32.mul (local.get $body-length) (i32.const 100)))))
    (if (i32.eq (local.get $letters) (i32.const 0x7277)) (then ;; wr
      (i32.store16 (i32.const 100) (i32.const 99))))
    (i32.const 100))

  (func (export "cabi_post_edgepass:node/service@0.1.0#handle") (param i32)
    (global.set $next (i32.const 65536))))
