#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <string_view>

#include "casync/error.hpp"

/// Errors of the core as those of casync/errors.py, which are there so that they are documented and importable without
/// a compiled module. For the translators of both modules.
namespace casync {

/// Sets the Python error: class `name` with the text and the fields of `error`.
inline void raise_as(const pybind11::object& errors, const char* name, const Error& error) {
  namespace py = pybind11;
  const auto text = [](std::string_view of) {  // a text may quote bytes that came from anywhere
    PyObject* const made = PyUnicode_DecodeUTF8(of.data(), static_cast<Py_ssize_t>(of.size()), "replace");
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  };
  const auto number = [](const auto& rank) { return rank ? py::object(py::int_(*rank)) : py::none(); };
  const ErrorFacts& facts = error.facts;
  const py::object made = errors.attr(name)(text(error.what()), py::arg("kind") = text(name_of(facts.kind)),
                                            py::arg("tensor") = facts.tensor.empty() ? py::none() : text(facts.tensor),
                                            py::arg("op") = facts.op ? text(name_of(*facts.op)) : py::none(),
                                            py::arg("rank") = number(facts.rank), py::arg("peer") = number(facts.peer));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

inline void translate_error(std::exception_ptr pointer) {
  // Never freed: the interpreter is gone when static objects are destroyed.
  static const auto& errors = *new pybind11::object(pybind11::module_::import("casync.errors"));
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    raise_as(errors, "InvalidArgumentError", error);
  } catch (const Mismatch& error) {
    raise_as(errors, "MismatchError", error);
  } catch (const PeerFailure& error) {
    raise_as(errors, "PeerFailureError", error);
  } catch (const Aborted& error) {
    raise_as(errors, "AbortedError", error);
  } catch (const Timeout& error) {
    raise_as(errors, "StallError", error);
  } catch (const CorruptPayload& error) {
    raise_as(errors, "CorruptPayloadError", error);
  } catch (const DeviceFailure& error) {
    raise_as(errors, "DeviceError", error);
  } catch (const Error& error) {
    raise_as(errors, "CasyncError", error);
  }
}

/// The same as an object, for who is told of an error and does not raise it. With the GIL.
inline pybind11::object error_object(const std::exception_ptr& pointer) {
  translate_error(pointer);
  return pybind11::error_already_set().value();
}

}  // namespace casync
