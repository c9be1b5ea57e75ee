;; A `wasi:http` component that does what no good component does, and answers nothing but an error,
;; which the node makes a 500 of. The path says what it does before:
;;   /trap    traps
;;   /loop    computes for ever
;;   /grow    asks for memory until there is no more; traps if it gets 64 MiB
;;   /keep    keeps 4 MiB more with each request
(module
  (import "wasi:http/types@0.3.0" "[method]request.get-path-with-query" (func $path (param i32 i32)))
  (import "wasi:http/types@0.3.0" "[resource-drop]request" (func $drop (param i32)))
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 65536))

  ;; The path is thrown away with the request, so every request begins at the same place.
  (func (export "cabi_realloc") (param $old i32) (param $had i32) (param $align i32) (param $size i32) (result i32)
    (global.get $next))

  ;; 0: the answer, 64: the path
  (func (export "wasi:http/handler@0.3.0#handle") (param $request i32) (result i32)
    (local $letters i32)
    (call $path (local.get $request) (i32.const 64))
    (call $drop (local.get $request))
    (local.set $letters (i32.load16_u offset=1 (i32.load (i32.const 68))))
    (if (i32.eq (local.get $letters) (i32.const 0x7274)) (then (unreachable))) ;; tr
    (if (i32.eq (local.get $letters) (i32.const 0x6f6c)) (then (loop $on (br $on)))) ;; lo
    (if (i32.eq (local.get $letters) (i32.const 0x7267)) (then ;; gr
      (loop $on (br_if $on (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
      (if (i32.gt_u (memory.size) (i32.const 1023)) (then (unreachable)))))
    (if (i32.eq (local.get $letters) (i32.const 0x656b)) (then ;; ke
      (if (i32.eq (i32.const -1) (memory.grow (i32.const 64))) (then (unreachable)))))
    ;; The error `internal-error` without words.
    (i32.store8 (i32.const 0) (i32.const 1))
    (i32.store8 (i32.const 8) (i32.const 38))
    (i32.store8 (i32.const 16) (i32.const 0))
    (i32.const 0)))
