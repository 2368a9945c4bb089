#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "casync/transport.hpp"

/// How a transport goes through Python to the session that uses it, from whichever module made it.
namespace casync {

inline constexpr const char* kTransportCapsule = "casync.Transport";

/// A capsule that holds a std::shared_ptr<Transport>*.
inline pybind11::capsule capsule_of(std::unique_ptr<Transport> transport) {
  auto held = std::make_unique<std::shared_ptr<Transport>>(std::move(transport));
  return pybind11::capsule(held.release(), kTransportCapsule, [](PyObject* capsule) {
    auto* owned = static_cast<std::shared_ptr<Transport>*>(PyCapsule_GetPointer(capsule, kTransportCapsule));
    const pybind11::gil_scoped_release release;  // the last owner closes the session
    delete owned;
  });
}

}  // namespace casync
