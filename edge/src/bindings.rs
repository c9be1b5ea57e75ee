//! What wasmtime generates from the interfaces the node speaks.

#[allow(missing_docs, clippy::pedantic, clippy::missing_errors_doc, reason = "generated code")]
pub(crate) mod node {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "edgepass:node/node",
        // A synchronous export called without `async` fails at run time in a store that has
        // asynchronous ones.
        exports: { default: async },
        imports: {
            "edgepass:node/runtime.random": trappable,
        },
    });
}

#[allow(missing_docs, clippy::pedantic, clippy::missing_errors_doc, reason = "generated code")]
pub(crate) mod spin {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "edgepass:spin-host/imports",
        imports: { default: trappable },
        with: {
            "spin:key-value/key-value.store": crate::spin::OpenStore,
        },
    });
}
