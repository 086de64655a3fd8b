/* One environment step of a navigation task as one call: physics, distances, contacts and lidar.
 *
 * The kernel knows nothing of MuJoCo's structures, so one build serves every MuJoCo release: it is handed the addresses of
 * MuJoCo's functions and of the arrays inside mjModel and mjData (see engine.py), and where in mjContact the two geoms
 * stand. What it computes is what PythonEngine computes, to the bit; a test holds that.
 *
 * Floating point: compiled without contraction, since a fused multiply-add rounds once where the reference rounds twice.
 */
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.141592653589793
#define MAX_GROUPS 8
#define STAGE_NONE 0
#define STAGE_VEL 2
#define WATCHED 5

typedef void (*stage_fn)(const void *model, void *data);
typedef void (*normalize_fn)(const void *model, double *qpos);
typedef void (*forward_skip_fn)(const void *model, void *data, int skip_stage, int skip_sensors);

typedef struct {
  int64_t first_body, count;
} Group;

typedef struct {
  const double *values;
  int64_t count;
} Span;

/* Filled from a list of integers in the order written here; engine.py's `_describe` writes that list. */
typedef struct {
  void *model, *data;
  stage_fn check_pos, check_vel, check_acc, euler, fwd_constraint, sensor_pos, sensor_vel, rne_post, sensor_acc;
  forward_skip_fn forward_skip;
  normalize_fn normalize_quat;
  double *ctrl, *mocap_pos, *qpos, *qvel;
  const double *xpos, *xquat, *xmat, *cvel, *sensordata;
  const char *contacts;
  int64_t contact_stride, geom1_offset, geom2_offset;
  const uint8_t *geom_tag;   /* per geom: 0 of no interest, 1 the agent's, 2 + k: object tag k */
  double *observation;
  int64_t nq, nv, bodies, mocaps, sensors, agent, substeps, bins, groups;
  Group group[MAX_GROUPS];
  /* The kernel's own: what the state and its position and velocity stages were when a step ended, and room for a qpos. */
  Span watched[WATCHED];
  double *known, *scratch;
} World;

static const int FIXED_FIELDS = (int)(offsetof(World, group) / sizeof(int64_t));

static void free_world(PyObject *capsule) {
  World *w = PyCapsule_GetPointer(capsule, NULL);
  if (w) { free(w->known); free(w->scratch); }
  free(w);
}

/* Whoever holds mjData may set another state, or go elsewhere and come back, and so leave stages that do not belong to the
 * state. Poses and velocities of the bodies tell: they are the stages' first results. */
static void remember_stages(World *w) {
  double *to = w->known;
  for (int i = 0; i < WATCHED; to += w->watched[i++].count)
    memcpy(to, w->watched[i].values, sizeof(double) * (size_t)w->watched[i].count);
}

static int stages_are_known(const World *w) {
  const double *from = w->known;
  for (int i = 0; i < WATCHED; from += w->watched[i++].count)
    if (memcmp(from, w->watched[i].values, sizeof(double) * (size_t)w->watched[i].count) != 0) return 0;
  return 1;
}

static void forget_stages(World *w) {
  for (int64_t i = 0; i < w->nq; i++) w->known[i] = NAN;
}

static PyObject *bind(PyObject *self, PyObject *numbers) {
  Py_ssize_t given = PyList_Size(numbers);
  if (given < FIXED_FIELDS || given > FIXED_FIELDS + 2 * MAX_GROUPS) {
    PyErr_SetString(PyExc_ValueError, "the description of the world has the wrong length");
    return NULL;
  }
  World *w = calloc(1, sizeof(World));
  if (!w) return PyErr_NoMemory();
  int64_t *field = (int64_t *)w;
  for (Py_ssize_t i = 0; i < given; i++) {
    field[i] = PyLong_AsLongLong(PyList_GetItem(numbers, i));
    if (PyErr_Occurred()) { free(w); return NULL; }
  }
  if (given != FIXED_FIELDS + 2 * w->groups) {
    PyErr_SetString(PyExc_ValueError, "the description of the world has the wrong number of groups");
    free(w);
    return NULL;
  }
  PyObject *capsule = PyCapsule_New(w, NULL, free_world);
  if (!capsule) { free(w); return NULL; }
  const Span watched[WATCHED] = {
      {w->qpos, w->nq}, {w->qvel, w->nv}, {w->xpos, 3 * w->bodies}, {w->xquat, 4 * w->bodies}, {w->cvel, 6 * w->bodies}};
  memcpy(w->watched, watched, sizeof watched);
  w->known = malloc(sizeof(double) * (size_t)(w->nq + w->nv + 13 * w->bodies));
  w->scratch = malloc(sizeof(double) * (size_t)w->nq);
  if (!w->known || !w->scratch) { Py_DECREF(capsule); return PyErr_NoMemory(); }
  forget_stages(w);
  return capsule;
}

/* MuJoCo normalises the quaternions in qpos at each position stage, and doing so twice can move their last digit. Only
 * where it does not is the stage the same the second time. */
static int stages_repeat(World *w) {
  size_t size = sizeof(double) * (size_t)w->nq;
  memcpy(w->scratch, w->qpos, size);
  w->normalize_quat(w->model, w->scratch);
  return memcmp(w->scratch, w->qpos, size) == 0;
}

/* mj_forward once more at the same state: only the constraint solver, which starts from its last solution, has work. */
static void forward_again(World *w) {
  if (stages_repeat(w)) w->fwd_constraint(w->model, w->data);
  else w->forward_skip(w->model, w->data, STAGE_NONE, 1);
}

/* What mj_step does with the Euler integrator, less the sensors nobody reads between two steps. With `reuse`, the position
 * and velocity stages that the previous environment step ended with are not done over. */
static void substep(World *w, int reuse) {
  w->check_pos(w->model, w->data);
  w->check_vel(w->model, w->data);
  w->forward_skip(w->model, w->data, reuse ? STAGE_VEL : STAGE_NONE, 1);
  w->check_acc(w->model, w->data);
  w->euler(w->model, w->data);
}

/* advance(world, force, turn, mocap_x, mocap_y, ..., height): `substeps` pairs of mocap coordinates follow when there are
 * mocap bodies. Ends as three calls of mj_forward would: the genuine environment makes three, and each starts the
 * constraint solver from the last solution, which moves the accelerometer in its last digits. */
static PyObject *advance(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  World *w = PyCapsule_GetPointer(args[0], NULL);
  if (!w) return NULL;
  Py_ssize_t expected = 3 + (w->mocaps ? 2 * w->substeps + 1 : 0);
  if (nargs != expected) {
    PyErr_SetString(PyExc_TypeError, "advance takes a control, and a path where there are mocap bodies");
    return NULL;
  }
  double number[64];
  if (expected > 64) { PyErr_SetString(PyExc_ValueError, "too many substeps"); return NULL; }
  for (Py_ssize_t i = 1; i < nargs; i++) number[i] = PyFloat_AsDouble(args[i]);
  if (PyErr_Occurred()) return NULL;
  w->ctrl[0] = number[1];
  w->ctrl[1] = number[2];

  Py_BEGIN_ALLOW_THREADS
  for (int64_t k = 0; k < w->substeps; k++) {
    for (int64_t i = 0; i < w->mocaps; i++) {
      w->mocap_pos[3 * i] = number[3 + 2 * k];
      w->mocap_pos[3 * i + 1] = number[4 + 2 * k];
      w->mocap_pos[3 * i + 2] = number[expected - 1];
    }
    substep(w, k == 0 && !w->mocaps && stages_are_known(w));
  }
  w->forward_skip(w->model, w->data, STAGE_NONE, 1);
  forward_again(w);
  forward_again(w);
  w->sensor_pos(w->model, w->data);
  w->sensor_vel(w->model, w->data);
  if (w->rne_post) w->rne_post(w->model, w->data);
  w->sensor_acc(w->model, w->data);
  if (!w->mocaps && stages_repeat(w)) remember_stages(w);
  else forget_stages(w);
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

/* NumPy's absolute value of a complex number, which the reference uses: not hypot, and one rounding less than it looks. */
static double plane_length(double x, double y) {
  double a = fabs(x), b = fabs(y), large = a > b ? a : b, small = a > b ? b : a;
  if (large == 0) return 0;
  double ratio = small / large;
  return large * sqrt(fma(ratio, ratio, 1.0));
}

/* One object's reading. The agent turns about the vertical only, so its frame is that of the plane. */
static void sense(const World *w, double *lidar, const double *place, double range) {
  const double *here = w->xpos + 3 * w->agent, *turn = w->xmat + 9 * w->agent;
  double vx = place[0] - here[0], vy = place[1] - here[1], vz = 0.0 - here[2];
  double x = (vx * turn[0] + vy * turn[3]) + vz * turn[6];
  double y = (vx * turn[1] + vy * turn[4]) + vz * turn[7];
  double distance = plane_length(x, y), angle = fmod(atan2(y, x), 2 * PI);
  if (angle < 0) angle += 2 * PI;
  double width = 2 * PI / (double)w->bins;
  int64_t bins = w->bins, bin = (int64_t)(angle / width);
  double closeness = range - distance > 0 ? (range - distance) / range : 0.0;
  double alias = (angle - width * (double)bin) / width;
  bin %= bins; /* a tiny negative angle can round up to a full turn */
  int64_t after = (bin + 1) % bins, before = (bin + bins - 1) % bins;
  if (closeness > lidar[bin]) lidar[bin] = closeness;
  if (alias * closeness > lidar[after]) lidar[after] = alias * closeness;
  if ((1 - alias) * closeness > lidar[before]) lidar[before] = (1 - alias) * closeness;
}

/* observe(world, range, hidden_group): fills the observation; the lidar of the group numbered hidden_group reads 0. */
static PyObject *observe(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  World *w = nargs == 3 ? PyCapsule_GetPointer(args[0], NULL) : NULL;
  if (!w) { if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "observe takes three arguments"); return NULL; }
  double range = PyFloat_AsDouble(args[1]);
  long hidden = PyLong_AsLong(args[2]);
  if (PyErr_Occurred()) return NULL;
  memcpy(w->observation, w->sensordata, sizeof(double) * (size_t)w->sensors);
  double *lidar = w->observation + w->sensors;
  memset(lidar, 0, sizeof(double) * (size_t)(w->groups * w->bins));
  for (int64_t g = 0; g < w->groups; g++, lidar += w->bins) {
    if (g == hidden) continue;
    for (int64_t i = 0; i < w->group[g].count; i++) sense(w, lidar, w->xpos + 3 * (w->group[g].first_body + i), range);
  }
  Py_RETURN_NONE;
}

/* A bit mask of the object tags in contact with the agent. */
static uint64_t contact_mask(const World *w, long contacts) {
  uint64_t mask = 0;
  for (long i = 0; i < contacts; i++) {
    const char *contact = w->contacts + i * w->contact_stride;
    int32_t one, two;
    memcpy(&one, contact + w->geom1_offset, sizeof one);
    memcpy(&two, contact + w->geom2_offset, sizeof two);
    if (one < 0 || two < 0) continue;
    uint8_t a = w->geom_tag[one], b = w->geom_tag[two];
    if (a == 1 && b > 1) mask |= (uint64_t)1 << (b - 2);
    if (b == 1 && a > 1) mask |= (uint64_t)1 << (a - 2);
  }
  return mask;
}

/* The smallest distance in the plane from the agent to an object of a group, in metres. */
static double least_distance(const World *w, int64_t group) {
  const double *here = w->xpos + 3 * w->agent;
  double least = INFINITY;
  for (int64_t i = 0; i < w->group[group].count; i++) {
    const double *place = w->xpos + 3 * (w->group[group].first_body + i);
    double x = place[0] - here[0], y = place[1] - here[1], distance = sqrt(x * x + y * y);
    if (distance < least) least = distance;
  }
  return least;
}

/* look(world, contacts) -> (mask, metres, ...): what the agent touches, and how far the nearest object of each group is.
 * One call, since after the physics the caches hold little of Python: each costs several times what it costs in a loop. */
static PyObject *look(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  World *w = nargs == 2 ? PyCapsule_GetPointer(args[0], NULL) : NULL;
  if (!w) { if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "look takes two arguments"); return NULL; }
  long contacts = PyLong_AsLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  PyObject *seen = PyTuple_New(1 + (Py_ssize_t)w->groups);
  if (!seen) return NULL;
  PyTuple_SetItem(seen, 0, PyLong_FromUnsignedLongLong(contact_mask(w, contacts)));
  for (int64_t g = 0; g < w->groups; g++) PyTuple_SetItem(seen, 1 + (Py_ssize_t)g, PyFloat_FromDouble(least_distance(w, g)));
  if (PyErr_Occurred()) { Py_DECREF(seen); return NULL; }
  return seen;
}

/* place(next_double, state, extent, keepouts, tries, object_tries) -> [x0, y0, x1, y1, ...] or None: rejection sampling on
 * NumPy's own stream, as Stream._try_layout has it. */
static PyObject *place(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  if (nargs != 6) { PyErr_SetString(PyExc_TypeError, "place takes six arguments"); return NULL; }
  double (*next_double)(void *) = (double (*)(void *))PyLong_AsVoidPtr(args[0]);
  void *state = PyLong_AsVoidPtr(args[1]);
  double extent = PyFloat_AsDouble(args[2]), keepout[64], xy[128];
  Py_ssize_t count = PyList_Size(args[3]);
  long tries = PyLong_AsLong(args[4]), object_tries = PyLong_AsLong(args[5]);
  if (count > 64) PyErr_SetString(PyExc_ValueError, "too many objects");
  for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) keepout[i] = PyFloat_AsDouble(PyList_GetItem(args[3], i));
  if (PyErr_Occurred()) return NULL;

  Py_ssize_t placed = 0;
  for (long layout = 0; layout < tries && placed < count; layout++) {
    for (placed = 0; placed < count; placed++) {
      double low = -extent + keepout[placed], width = (extent - keepout[placed]) - low;
      int is_free = 0;
      for (long attempt = 0; attempt < object_tries && !is_free; attempt++) {
        double x = low + width * next_double(state), y = low + width * next_double(state);
        is_free = 1;
        for (Py_ssize_t i = 0; i < placed && is_free; i++) {
          double dx = x - xy[2 * i], dy = y - xy[2 * i + 1];
          if (sqrt(dx * dx + dy * dy) < keepout[i] + keepout[placed]) is_free = 0;
        }
        xy[2 * placed] = x;
        xy[2 * placed + 1] = y;
      }
      if (!is_free) break;
    }
  }
  if (placed < count) Py_RETURN_NONE;
  PyObject *list = PyList_New(2 * count);
  for (Py_ssize_t i = 0; list && i < 2 * count; i++) PyList_SetItem(list, i, PyFloat_FromDouble(xy[i]));
  return list;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_O, "bind(numbers) -> world"},
    {"advance", (PyCFunction)(void (*)(void))advance, METH_FASTCALL, "advance(world, force, turn, *path)"},
    {"observe", (PyCFunction)(void (*)(void))observe, METH_FASTCALL, "observe(world, range, hidden_group)"},
    {"look", (PyCFunction)(void (*)(void))look, METH_FASTCALL, "look(world, contacts) -> (mask, metres, ...)"},
    {"place", (PyCFunction)(void (*)(void))place, METH_FASTCALL, "place(next_double, state, extent, keepouts, tries, object_tries)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", "The navigation simulators' inner loop.", -1, methods};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&module); }
