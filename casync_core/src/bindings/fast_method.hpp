#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>

#include "casync/error.hpp"

namespace casync {

/// The positional arguments of a call.
using Arguments = std::span<PyObject* const>;

template <class T>
T argument(Arguments given, std::size_t index) {
  try {
    return pybind11::cast<T>(pybind11::handle(given[index]));
  } catch (const pybind11::cast_error& error) {
    throw pybind11::type_error(detail::concat("argument ", index + 1, ": ", error.what()));
  }
}

/// Gives a bound class a method in CPython's own calling convention, without keywords and overloads: for what a program
/// does with every gradient of every step, where pybind11's dispatcher would take as long as the work. `method` takes
/// the object and from `fewest` to `most` arguments, returns a new reference, and may throw all that pybind11 knows.
template <auto method, std::size_t fewest, std::size_t most, class Bound>
void def_fast(pybind11::class_<Bound>& bound, const char* name, const char* doc) {
  PyObject* (*const call)(PyObject*, PyObject* const*, Py_ssize_t) = [](PyObject* self, PyObject* const* given,
                                                                        Py_ssize_t count) -> PyObject* {
    try {
      const Arguments arguments(given, static_cast<std::size_t>(count));
      // CPython has checked that `self` is of the class, which is final: pybind11::cast would look it up by name.
      auto* const object =
          static_cast<Bound*>(reinterpret_cast<pybind11::detail::instance*>(self)->get_value_and_holder().value_ptr());
      if (object == nullptr) throw pybind11::type_error("__init__() was not called");
      if (arguments.size() < fewest || arguments.size() > most) {
        throw pybind11::type_error(detail::concat("this method does not take ", arguments.size(), " arguments"));
      }
      return pybind11::object(method(*object, arguments)).release().ptr();
    } catch (const abi::__forced_unwind&) {  // a thread that ends with the interpreter
      throw;
    } catch (...) {
      pybind11::detail::try_translate_exceptions();
      return nullptr;
    }
  };
  static PyMethodDef definition{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL,
                                doc};
  auto* const type = reinterpret_cast<PyTypeObject*>(bound.ptr());
  bound.attr(name) = pybind11::reinterpret_steal<pybind11::object>(PyDescr_NewMethod(type, &definition));
}

}  // namespace casync
