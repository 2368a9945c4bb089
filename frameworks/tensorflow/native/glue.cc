/// A library that tf.load_op_library loads: it registers one operation of TensorFlow for each collective. Their kernels
/// are in kernel.cc.

#include <string>

#include "kernel.hpp"

namespace casync::tensorflow {
namespace {

std::string failure;

/// The shapes are set in Python, which knows more of them.
void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  framework().TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void define(const OpSpec& spec) {
  const Framework& tf = framework();
  TF_OpDefinitionBuilder* const builder = tf.TF_NewOpDefinitionBuilder(spec.name);
  tf.TF_OpDefinitionBuilderAddInput(builder, "tensor: T");
  if (spec.kind == CASYNC_ALLREDUCE) tf.TF_OpDefinitionBuilderAddInput(builder, "terms: float32");
  if (spec.kind == CASYNC_ALLTOALL) tf.TF_OpDefinitionBuilderAddInput(builder, "splits: int64");
  tf.TF_OpDefinitionBuilderAddOutput(builder, "output: T");
  if (spec.kind == CASYNC_ALLTOALL) tf.TF_OpDefinitionBuilderAddOutput(builder, "received: int64");
  for (const char* attribute : kAttributes) tf.TF_OpDefinitionBuilderAddAttr(builder, attribute);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown_shapes);
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);  // never folded, merged or left out
  const Status status;
  tf.TF_RegisterOpDefinition(builder, status);
  if (!status.ok()) {
    failure = status.text();
    return;
  }
  tf.TF_RegisterKernelBuilder(spec.name, tf.TF_NewAsyncKernelBuilder(spec.name, "CPU", spec.create, compute, destroy),
                              status);
  if (!status.ok()) failure = status.text();
}

/// While the framework notes which operations a library brings.
__attribute__((constructor)) void begin() {
  if (!framework().missing.empty()) return;
  for (const OpSpec& spec : kOpSpecs) define(spec);
}

}  // namespace
}  // namespace casync::tensorflow

extern "C" {

/// What keeps this library from working; "" if nothing does.
__attribute__((visibility("default"))) const char* casync_tensorflow_failure() {
  using namespace casync::tensorflow;
  return framework().missing.empty() ? failure.c_str() : framework().missing.c_str();
}

/// To be called before the first operation runs. Not 0: the table is of another version.
__attribute__((visibility("default"))) int casync_tensorflow_start(const casync_c_api* table) {
  if (table->version != CASYNC_C_API_VERSION || table->size < sizeof(casync_c_api)) return 1;
  casync::tensorflow::use(*table);
  return 0;
}
}
