#pragma once

#include <pybind11/pybind11.h>

#include "casync/metrics.hpp"

/// One function per public header, and one for the shortcut past the adaptors, called by module.cc.
namespace casync {

void bind_c_api(pybind11::module_& module);
void bind_codec(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_shortcuts(pybind11::module_& module);
void bind_together(pybind11::module_& module);
void bind_phases(pybind11::module_& module);
void bind_plan_model(pybind11::module_& module);
void bind_simulate(pybind11::module_& module);
void bind_tcp(pybind11::module_& module);

/// What casync/observe/metrics.py reads.
pybind11::dict to_dict(const Metrics& metrics);

}  // namespace casync
