#include <pybind11/pybind11.h>

#include "bindings/bindings.hpp"
#include "casync/error.hpp"
#include "common/crc32c.hpp"

namespace py = pybind11;

namespace casync {

void bind_errors(py::module_& module) {
  // The Python classes live in casync/errors.py, so that they are documented and importable without the compiled
  // module. Never freed: the interpreter is gone when static objects are destroyed.
  static const auto& errors = *new py::object(py::module_::import("casync.errors"));
  py::register_exception_translator([](std::exception_ptr pointer) {
    const auto raise = [](const char* name, const std::exception& error) {
      PyErr_SetString(errors.attr(name).ptr(), error.what());
    };
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
      raise("InvalidArgumentError", error);
    } catch (const Mismatch& error) {
      raise("MismatchError", error);
    } catch (const PeerFailure& error) {
      raise("PeerFailureError", error);
    } catch (const Aborted& error) {
      raise("AbortedError", error);
    } catch (const Timeout& error) {
      raise("StallError", error);
    } catch (const CorruptPayload& error) {
      raise("CorruptPayloadError", error);
    } catch (const Error& error) {
      raise("CasyncError", error);
    }
  });
  (void)module;
}

void bind_checksum(py::module_& module) {
  using namespace py::literals;
  module.def(
      "crc32c",
      [](std::uintptr_t address, std::size_t bytes) {
        const py::gil_scoped_release release;
        return crc32c({reinterpret_cast<const std::byte*>(address), bytes});
      },
      "address"_a, "bytes"_a, "CRC-32C of memory.");
}

}  // namespace casync

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of CaSync. Use casync.session and the adaptors instead.";
  casync::bind_errors(module);
  casync::bind_checksum(module);
  casync::bind_codec(module);
  casync::bind_session(module);
  casync::bind_shortcuts(module);
  casync::bind_simulate(module);
}
