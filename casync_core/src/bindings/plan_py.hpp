#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "casync/plan.hpp"

namespace casync {

/// The fields of casync.plan.GradientPlan.
pybind11::dict to_dict(const GradientPlan& plan);
/// Throws InvalidArgument, naming the tensor, for a topology that is not known and a coefficient that cannot be.
GradientPlan plan_of(const std::string& name, const pybind11::dict& dict);

}  // namespace casync
